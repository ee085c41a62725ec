"""How do weights change? The loop, checkpoints, reports, and the exported model.

from ascendtune.train import Recipe, fit

result = fit(Recipe.load("recipe.yaml"))
"""

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.fit import FitResult, fit
from ascendtune.train.report.callback import Callback, RunFacts

__all__ = ["Callback", "FitResult", "Recipe", "RunFacts", "fit"]
