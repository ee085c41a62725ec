"""How many checkpoints a run writes. No torch."""

from __future__ import annotations

import math

from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import CheckpointSection

_LEAST_BETWEEN, _SHARE = 20, 10


def steps_between(section: CheckpointSection, total_steps: int) -> int:
    """Steps from one scheduled checkpoint to the next."""
    return section.every_steps or max(_LEAST_BETWEEN, total_steps // _SHARE)


def most_checkpoints(recipe: Recipe, *, total_steps: int, steps_per_epoch: int | None) -> int:
    """The most that a run writes until its end: with `checkpoint.best` each evaluation may be the best so far.

    Args:
        steps_per_epoch: None where it is not known: an evaluation at the end alone.
    """
    every, last = steps_between(recipe.checkpoint, total_steps), total_steps - 1
    scheduled = last // every
    if not recipe.checkpoint.best:
        return scheduled
    evaluates = recipe.eval.every_steps or steps_per_epoch or total_steps
    # The last step is evaluated, whatever it is, and has no other checkpoint.
    return scheduled + last // evaluates - last // math.lcm(every, evaluates) + 1
