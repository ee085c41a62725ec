"""Which exception was raised, and where? Tracebacks of Python: whole, wrapped, or in one line."""
