"""How does an adapter become part of its base model? Streamed from file to file, so that memory stays small."""
