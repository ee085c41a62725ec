"""Which event is the first cause, and how certain is that?"""
