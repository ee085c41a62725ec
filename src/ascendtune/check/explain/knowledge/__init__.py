"""Which known failures match a line? The entries and tables of the TOML files here, and the matcher."""
