"""Two nodes, of which one prepares its data for longer than a process group waits for its ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import attempt
from ascendtune.train.prepare import prepare_run
from ascendtune.train.strategy import base


def _train_as_node(run: RunDir) -> None:
    os.environ |= {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": os.environ["RANK"]}
    attempt.train(run, run.read())


def test_node_that_prepares_its_data_for_long_does_not_end_the_others(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_data = attempt._open_data

    def slowly(*arguments: Any) -> Any:
        time.sleep(8 if os.environ["RANK"] == "1" else 0)
        return open_data(*arguments)

    monkeypatch.setattr(attempt, "_open_data", slowly)
    monkeypatch.setattr(base, "_TIMEOUT", timedelta(seconds=4))
    run = prepare_run(recipe(optim={"max_steps": 1}, batch={"per_device": 2}, parallel={"strategy": "ddp"}), {}).run
    assert run is not None
    on_ranks(2, partial(_train_as_node, run))
    assert run.read()["state"] == "finished"
