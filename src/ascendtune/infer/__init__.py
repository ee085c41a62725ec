"""How are weights used? A run, a model or an adapter is loaded, and answers conversations."""
