"""What stands in the files of ZeRO's state on a disk, without DeepSpeed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ascendtune.core.errors import MachineError
from ascendtune.train.strategy import deepspeed_disk


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda file: None, "No such file"),
        (lambda file: file.write_bytes(b"abc"), "header"),
        (lambda file: file.write_bytes(os.urandom(300)), "header"),
        (lambda file: file.mkdir(), "No such device"),
        (lambda file: save_file({"exp_avg": torch.zeros(2)}, file), "group_0.safetensors holds no weights"),
    ],
    ids=["absent", "short", "random", "directory", "without weights"],
)
def test_damaged_group_is_a_damaged_checkpoint(tmp_path: Path, damage: Callable[[Path], object], why: str) -> None:
    file = tmp_path / "group_0.safetensors"
    damage(file)
    with pytest.raises(MachineError) as refused:
        deepspeed_disk._load_group(file, tmp_path)
    assert refused.value.code == "checkpoint-damaged"
    assert why in refused.value.what and refused.value.where == str(tmp_path)


def test_fault_of_the_program_is_not_taken_for_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise TypeError

    monkeypatch.setattr(deepspeed_disk, "load_file", fail)
    with pytest.raises(TypeError):
        deepspeed_disk._load_group(tmp_path, tmp_path)
