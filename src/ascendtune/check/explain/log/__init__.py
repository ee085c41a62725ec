"""What do the lines of a log say? Files of any kind, read as lines with their rank, time and level."""
