"""Does a run still move? Heartbeats judged, stacks collected, the odd rank named."""
