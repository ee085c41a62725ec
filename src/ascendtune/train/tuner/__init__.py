"""Which weights may change?"""
