"""The free space that a run asks for before its first step is what its checkpoints ask for later."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from ascendtune.core.errors import MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.checkpointer import Checkpointer, require_space_for_run
from ascendtune.train.checkpoint.content import NamedTensors
from ascendtune.train.strategy.base import Strategy

Usage = namedtuple("Usage", "total used free")
MODEL = torch.nn.Linear(64, 64, bias=False)
CHECKPOINT, FINAL = 3 * 4 * 64 * 64, 2 * 64 * 64


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    return run


def _refuses(run: RunDir, monkeypatch: pytest.MonkeyPatch, *, free: int, keep: int = 1) -> bool:
    """Whether a run that writes ten checkpoints does not begin with `free` bytes."""
    recipe = Recipe.check({"model": {"path": "m"}, "data": {"train": "d"}, "checkpoint": {"keep": keep, "best": False}})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, free))
    try:
        require_space_for_run(run, recipe, MODEL, torch.bfloat16, checkpoints=10)
    except MachineError as error:
        assert error.code == "disk-space-missing"
        return True
    return False


def _can_save(run: RunDir, monkeypatch: pytest.MonkeyPatch, *, free: int) -> bool:
    optimizer = torch.optim.AdamW(MODEL.parameters())
    (MODEL(torch.ones(1, 64)).sum() * 0).backward()
    optimizer.step()
    strategy = Strategy(find_device())
    checkpointer = Checkpointer(run, strategy, NamedTensors(MODEL, optimizer, strategy.device), keep=1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, free))
    try:
        checkpointer.save(1, {})
    except MachineError as error:
        assert error.code == "disk-space-missing"
        return False
    checkpointer.wait()
    return True


def test_run_that_begins_can_write_the_last_of_its_checkpoints(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    free = next(each for each in range(0, 64 << 20, 1 << 16) if not _refuses(run, monkeypatch, free=each))
    # The one that is kept is there when the second one is written.
    assert _can_save(run, monkeypatch, free=free - CHECKPOINT)
    assert free < 2 * CHECKPOINT + FINAL + (17 << 20)


def test_checkpoints_of_a_larger_keep_are_no_space_for_the_next_one(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(9):
        run.checkpoint(step).mkdir()
        (run.checkpoint(step) / "tensors_rank_0.safetensors").write_bytes(bytes(CHECKPOINT))
    assert _refuses(run, monkeypatch, free=CHECKPOINT + (16 << 20) - 1)
