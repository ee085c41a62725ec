"""How does text become tokens? Formats, templates, tokenisation, packing, batches, and the report of what was read."""
