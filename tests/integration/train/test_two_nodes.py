"""Two nodes: one prepares its data for longer than a process group waits for its ranks, or has another model."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ascendtune.core.errors import RecipeError
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
    monkeypatch.setattr(base, "TIMEOUT", timedelta(seconds=4))
    run = prepare_run(recipe(optim={"max_steps": 1}, batch={"per_device": 2}, parallel={"strategy": "ddp"}), {}).run
    assert run is not None
    on_ranks(2, partial(_train_as_node, run))
    assert run.read()["state"] == "finished"


def test_nodes_with_other_models_at_the_same_path_are_refused(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], tiny_model: Path, tmp_path: Path
) -> None:
    """With fsdp each would train its shards of its own model: parts of two models as one, with a plausible loss."""
    other = shutil.copytree(tiny_model, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    run = prepare_run(recipe(optim={"max_steps": 1}, batch={"per_device": 2}, parallel={"strategy": "fsdp"}), {}).run
    assert run is not None
    read = run.read

    def train() -> None:
        changes = {"model_directory": str(other)} if os.environ["RANK"] == "1" else {}
        os.environ |= {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": os.environ["RANK"]}
        with pytest.raises(RecipeError, match="other weights at this path") as caught:
            attempt.train(run, {**read(), **changes})
        assert caught.value.code == "model-differs-between-nodes"

    on_ranks(2, train)
