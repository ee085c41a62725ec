"""To which package and release does the code belong? Names that packages added, renamed and removed."""
