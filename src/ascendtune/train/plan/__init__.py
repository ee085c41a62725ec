"""Does a recipe fit on a device, and what would make it fit?"""
