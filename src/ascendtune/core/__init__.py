"""Which words is everything said in? Errors, configuration, processes, run directories, units, log."""
