"""How far is the model from the data? Losses that score only what is learnt."""
