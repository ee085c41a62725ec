"""Where processes run: one module per place."""
