"""How does a row say what is trained on? One file per format; `choose.FORMATS` lists them."""
