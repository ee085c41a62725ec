"""What do all rooms share? Errors, configuration, processes, run directories, units, log."""
