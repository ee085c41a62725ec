"""Whose code is it, and of which release? Names that packages added, renamed and removed."""
