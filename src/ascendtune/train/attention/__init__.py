"""How is attention computed, so that documents in one sequence do not attend to each other?"""
