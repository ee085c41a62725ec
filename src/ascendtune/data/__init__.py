"""How does text become tokens? Formats, templates, tokenisation, packing, batches, and the report on the rows."""
