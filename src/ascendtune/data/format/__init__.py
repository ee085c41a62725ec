"""How is a row converted into a conversation, text or preference? One file per format; `choose.FORMATS` lists them."""
