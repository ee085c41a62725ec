"""Whose line is it, and which ranks are missing?"""
