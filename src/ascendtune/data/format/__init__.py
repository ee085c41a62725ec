"""How does a row say what is learnt from it? One file per format; which exist stands in `choose`."""
