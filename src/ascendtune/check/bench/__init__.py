"""How much faster is a recipe on more devices, and what keeps it from being faster still?"""
