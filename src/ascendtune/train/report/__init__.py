"""Who is told when something happens in a run?"""
