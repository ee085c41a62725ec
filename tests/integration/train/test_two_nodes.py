"""Two nodes: one works for longer than a process group waits for its ranks, or has another model."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from ascendtune.core.errors import RecipeError
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import attempt, model_setup
from ascendtune.train.checkpoint import checkpointer, content
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
        time.sleep(6 if os.environ["RANK"] == "1" else 0)
        return open_data(*arguments)

    monkeypatch.setattr(attempt, "_open_data", slowly)
    monkeypatch.setattr(base, "TIMEOUT", timedelta(seconds=4))
    run = prepare_run(recipe(optim={"max_steps": 1}, batch={"per_device": 2}, parallel={"strategy": "ddp"}), {}).run
    assert run is not None
    on_ranks(2, partial(_train_as_node, run))
    assert run.read()["state"] == "finished"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(model_setup, "load_in_parts", id="load"),
        pytest.param(model_setup, "install_kernels", id="fill"),
        pytest.param(content, "write_files", id="write"),
        pytest.param(checkpointer, "require_intact", id="read"),
    ],
)
def test_node_with_slow_files_does_not_end_the_others(
    module: Any, name: str, recipe: Callable[..., Recipe], on_ranks: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked = recipe(
        optim={"max_steps": 3}, batch={"per_device": 2}, parallel={"strategy": "fsdp"},
        checkpoint={"every_steps": 1, "keep": 9, "resume": "auto"},
    )  # fmt: skip
    run = prepare_run(asked, {}).run
    assert run is not None
    on_ranks(2, partial(attempt.train, run, run.read()))
    run.update(state="running")
    run.remove_checkpoints_after(1)
    usual = getattr(module, name)

    def slowly(*arguments: Any, **named: Any) -> Any:
        time.sleep(6 if os.environ["RANK"] == "1" else 0)
        return usual(*arguments, **named)

    monkeypatch.setattr(module, name, slowly)
    monkeypatch.setattr(base, "TIMEOUT", timedelta(seconds=4))
    monkeypatch.setattr(dist, "new_group", partial(dist.new_group, timeout=timedelta(seconds=4)))
    run = prepare_run(asked, {}).run
    assert run is not None
    on_ranks(2, partial(_train_as_node, run))
    assert [each["attempt"] for each in run.read_metrics()] == [1, 2, 2]
    assert run.read()["state"] == "finished" and run.checkpoint_steps() == [1, 2, 3]


@pytest.fixture
def _old_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS lists a directory from its cache for up to a minute; paths that were not asked for before are found."""
    listed, found = RunDir.checkpoint_steps, Path.rglob
    monkeypatch.setattr(RunDir, "checkpoint_steps", lambda run: listed(run)[: 1 if os.environ["RANK"] == "1" else None])
    monkeypatch.setattr(
        Path, "rglob", lambda path, pattern: (each for each in found(path, pattern) if "rank_1" not in each.name)
    )


@pytest.mark.usefixtures("_old_listings")
def test_all_nodes_resume_from_the_checkpoint_that_the_main_rank_sees(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None]
) -> None:
    asked = recipe(
        optim={"max_steps": 5}, batch={"per_device": 2}, parallel={"strategy": "fsdp"},
        checkpoint={"every_steps": 1, "keep": 9, "resume": "auto"},
    )  # fmt: skip
    run = prepare_run(asked, {}).run
    assert run is not None
    on_ranks(2, partial(attempt.train, run, run.read()))
    expected, losses = load_file(run.model / "model.safetensors"), [each["loss"] for each in run.read_metrics()]
    run.update(state="running")
    for step in (4, 5):
        run.remove_checkpoint(step)
    # As the launcher restarts it: no command names the checkpoint in run.json.
    on_ranks(2, partial(_train_as_node, run))
    assert [each["attempt"] for each in run.read_metrics()] == [1, 1, 1, 2, 2]
    assert [each["loss"] for each in run.read_metrics()] == losses
    found = load_file(run.model / "model.safetensors")
    assert all(torch.equal(found[name], each) for name, each in expected.items())
    names = ["rng/rank_0.safetensors", "rng/rank_1.safetensors", "state.json"]
    names += ["tensors_rank_0.safetensors", "tensors_rank_1.safetensors"]
    assert sorted(json.loads((run.checkpoint(4) / "digests.json").read_text())) == names


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
