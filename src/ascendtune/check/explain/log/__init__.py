"""How is a log read? Files of any kind, as lines with their rank, time and level."""
