"""Does a run still make progress? Heartbeats are judged, stacks collected, the odd rank named."""
