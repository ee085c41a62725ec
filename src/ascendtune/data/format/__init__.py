"""How does a row say its conversation? One file per format; which exist stands in `choose`."""
