"""Which rank wrote a line, and which ranks are missing?"""
