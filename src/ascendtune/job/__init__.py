"""How are processes started, watched and ended? A job is an argv and its devices; what it does is its own."""
