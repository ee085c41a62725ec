"""Several hosts: who are they, do they stand on the same ground, and what runs on each?"""
