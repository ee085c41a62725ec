"""How do machines differ that will be used together?"""
