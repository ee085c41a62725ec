"""What is the answer, and what should the user do?"""
