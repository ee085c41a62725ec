"""How do weights change? The recipe, the loop, checkpoints, and what comes out.

from ascendtune.train import Recipe, fit

result = fit(Recipe.load("recipe.yaml"))
"""

from ascendtune.train.fit import FitResult, fit
from ascendtune.train.recipe import Recipe

__all__ = ["FitResult", "Recipe", "fit"]
