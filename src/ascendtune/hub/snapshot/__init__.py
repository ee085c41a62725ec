"""How do whole repositories of a hub get onto this disk, through mirrors that fail?"""
