"""How is another program's training recorded? By hooks in torch, for `ascendtune align record`."""
