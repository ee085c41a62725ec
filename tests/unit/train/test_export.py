from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from torch import nn

from ascendtune.core.errors import MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.checkpointer import require_space_for_run

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("checkpoints", "keep", "said", "lower"),
    [(0, 2, "(a model of ", False), (9, 2, "(3 checkpoints of ", True), (9, 1, "(2 checkpoints of ", False)],
)
def test_remedy_for_a_full_disk_names_keep_only_where_it_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: int, keep: int, said: str, lower: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 0))
    values = {"model": {"path": "m"}, "data": {"train": "d"}, "checkpoint": {"keep": keep}}
    with pytest.raises(MachineError) as caught:
        require_space_for_run(
            RunDir(tmp_path), Recipe.model_validate(values), nn.Linear(8, 8), torch.float32, checkpoints
        )
    assert said in caught.value.what and ("lower checkpoint.keep" in caught.value.remedy) is lower
