"""Is it right? Compares measurements with expectations, with remedies for differences."""
