from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from ascendtune.core.errors import MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.checkpointer import require_space_for_run
from ascendtune.train.export import export_model

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


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("No space left on device (os error 28)", "disk-full"),
        ("Disk quota exceeded (os error 122)", "disk-quota-exceeded"),
        ("File too large (os error 27)", "file-too-large"),
    ],
)
def test_fault_of_the_disk_that_safetensors_words_is_named(tmp_path: Path, said: str, code: str) -> None:
    class Model(nn.Linear):
        def save_pretrained(self, directory: Path) -> None:
            directory.mkdir()
            raise SafetensorError(f"Error while serializing: I/O error: {said}")

    tokenizer: Any = None
    with pytest.raises(MachineError) as caught:
        export_model(Model(8, 8), tokenizer, tmp_path / "model", "", new_tokens=False)
    assert caught.value.code == code and caught.value.where == str(tmp_path / "model")
    assert not list(tmp_path.iterdir())
