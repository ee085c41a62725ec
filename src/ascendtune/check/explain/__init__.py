"""What went wrong, by the logs? The first cause, not its last echo."""
