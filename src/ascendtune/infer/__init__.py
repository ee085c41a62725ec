"""How are weights used? Load a run, a model or an adapter, and answer conversations."""
