"""Number of checkpoints that a run writes. Free of torch."""

from __future__ import annotations

import math

from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import CheckpointSection

_LEAST_BETWEEN, _SHARE = 20, 10


def steps_between(section: CheckpointSection, total_steps: int) -> int:
    """Number of steps between two scheduled checkpoints."""
    return section.every_steps or max(_LEAST_BETWEEN, total_steps // _SHARE)


def most_checkpoints(recipe: Recipe, *, total_steps: int, steps_per_epoch: int | None, done: int = 0) -> int:
    """Largest number of checkpoints until the end: with `checkpoint.best` each evaluation may be the best so far.

    Args:
        steps_per_epoch: None if unknown: then there is one evaluation, at the end.
        done: the step that a resumed run starts from.
    """
    every = steps_between(recipe.checkpoint, total_steps)
    evaluates = recipe.eval.every_steps or steps_per_epoch or total_steps

    def until(last: int) -> int:
        evaluations = last // evaluates - last // math.lcm(every, evaluates) if recipe.checkpoint.best else 0
        return last // every + evaluations

    if done >= total_steps:
        return 0
    # The last step is always evaluated; it has a checkpoint if any is scheduled.
    return until(total_steps - 1) - until(done) + (recipe.checkpoint.best or every <= total_steps)
