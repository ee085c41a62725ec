"""How are processes started, watched and ended? A job is a command and its devices; its content does not matter
here."""
