"""How do several devices share the work?"""
