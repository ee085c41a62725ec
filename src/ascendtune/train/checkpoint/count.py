"""How many checkpoints a run writes. No torch."""

from __future__ import annotations

import math

from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import CheckpointSection

_LEAST_BETWEEN, _SHARE = 20, 10


def steps_between(section: CheckpointSection, total_steps: int) -> int:
    """Steps from one scheduled checkpoint to the next."""
    return section.every_steps or max(_LEAST_BETWEEN, total_steps // _SHARE)


def most_checkpoints(recipe: Recipe, *, total_steps: int, steps_per_epoch: int | None, done: int = 0) -> int:
    """The most that a run writes until its end: with `checkpoint.best` each evaluation may be the best so far.

    Args:
        steps_per_epoch: None where it is not known: an evaluation at the end alone.
        done: the step that a resumed run goes on from.
    """
    every = steps_between(recipe.checkpoint, total_steps)
    evaluates = recipe.eval.every_steps or steps_per_epoch or total_steps

    def until(last: int) -> int:
        evaluations = last // evaluates - last // math.lcm(every, evaluates) if recipe.checkpoint.best else 0
        return last // every + evaluations

    if done >= total_steps:
        return 0
    # The last step is evaluated, whatever it is, and has no other checkpoint.
    return until(total_steps - 1) - until(done) + (1 if recipe.checkpoint.best else 0)
