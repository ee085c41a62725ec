"""In what do machines differ that are to work together?"""
