"""What does another program's training do? Its steps recorded by hooks in torch, for `ascendtune align record`."""
