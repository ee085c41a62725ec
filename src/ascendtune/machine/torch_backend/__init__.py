"""One file per vendor: everything torch says about its devices."""
