"""How is attention computed, so that documents in one sequence never see each other?"""
