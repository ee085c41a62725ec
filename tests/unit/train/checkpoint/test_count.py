"""The number of checkpoints of a run, against the steps of its loop one by one."""

from __future__ import annotations

import random

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.count import most_checkpoints


def test_count_is_that_of_the_loop_in_which_each_evaluation_is_the_best() -> None:
    draw = random.Random(3)
    for _ in range(300):
        total, per_epoch = draw.randint(1, 90), draw.randint(1, 40)
        every, evaluates, best = draw.choice((None, 1, 7, 30)), draw.choice((None, 1, 6, 100)), draw.random() < 0.7
        recipe = Recipe.check(
            {
                "model": {"path": "m"},
                "data": {"train": "d", "eval_rows": 2},
                "eval": {"every_steps": evaluates},
                "checkpoint": {"every_steps": every, "best": best},
            }
        )
        # As `Loop._should_save`, `_save_last` and `_should_evaluate` have it.
        saved = {each for each in range(1, total + 1) if each % (every or max(20, total // 10)) == 0}
        saved |= {total} if saved else set()
        evaluated = {each for each in range(1, total + 1) if each % (evaluates or per_epoch) == 0} | {total}
        written = saved | (evaluated if best else set())
        assert most_checkpoints(recipe, total_steps=total, steps_per_epoch=per_epoch) == len(written)
        done = draw.randint(0, total)
        left = sum(each > done for each in written)
        assert most_checkpoints(recipe, total_steps=total, steps_per_epoch=per_epoch, done=done) == left
