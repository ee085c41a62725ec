"""Which commands are there, and what do they print? One file per command; only this room prints."""
