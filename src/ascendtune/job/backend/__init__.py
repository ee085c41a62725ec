"""Backends that run processes: one module per place."""
