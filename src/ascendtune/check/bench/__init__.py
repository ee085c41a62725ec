"""How much faster is a recipe on more devices? What limits it?"""
