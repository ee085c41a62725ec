"""What is told, and what is to be done?"""
