"""Jobs of several hosts: which are they, are they alike, and what runs on each?"""
