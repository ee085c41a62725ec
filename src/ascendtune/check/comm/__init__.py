"""Can the ranks reach each other, are the transferred values right, and how fast are the links?"""
