"""What went wrong, said by the logs? The first cause, not its last echo."""
