"""`ascendtune quickstart`: a small model learns a small skill, from nothing, in a minute or two."""
