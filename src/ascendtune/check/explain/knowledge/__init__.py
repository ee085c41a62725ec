"""What is known about a line? The entries and tables of the TOML files here, and how lines are matched."""
