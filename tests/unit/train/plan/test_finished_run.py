"""The record of a run for later predictions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.finished_run import _features
from ascendtune.train.plan.history import tuner_of


def _recipe(**keys: Any) -> Recipe:
    return Recipe.check({"model": {"path": "m"}, "data": {"train": "d"}, **keys})


@pytest.mark.parametrize(("global_batch", "positions"), [(8, 100), (16, 100), (6, 75)])
def test_positions_are_those_of_a_micro_batch_of_the_global_batch_that_is_kept(
    global_batch: int, positions: int
) -> None:
    """Two rows of 50 tokens on each of two ranks at once; six rows need two rounds, too."""
    recipe = _recipe(batch={"per_device": 2, "accumulate": 2})
    rows = 48
    plan = SimpleNamespace(global_batch=global_batch, steps_per_epoch=rows // global_batch)
    loop: Any = SimpleNamespace(
        recipe=recipe, strategy=SimpleNamespace(world_size=2, name="ddp"), model=SimpleNamespace(config=None),
        batches=SimpleNamespace(plan=plan, dataset=SimpleNamespace(lengths=np.full(rows, 50))),
    )  # fmt: skip
    resolved = {"parameters": 1, "trainable": 1, "precision": {"compute": "bf16"}, "padding_ratio": 0.0}
    assert _features(loop, resolved).positions == positions


def test_quantised_weights_have_a_speed_of_their_own() -> None:
    method = {"tuner": "lora"}
    plain, quantised = (
        tuner_of(_recipe(model={"path": "m", "quantization": each}, method=method)) for each in (None, "nf4")
    )
    assert (plain, quantised) == ("lora", "lora nf4")
