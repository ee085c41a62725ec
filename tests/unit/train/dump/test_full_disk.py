"""A dump on a disk that is full."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from ascendtune.core.errors import MachineError
from ascendtune.train.dump import record


def test_full_disk_is_named_where_safetensors_hides_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_file(*_: Any) -> None:
        raise SafetensorError("I/O error")

    monkeypatch.setattr(safetensors.torch, "save_file", save_file)
    monkeypatch.setattr(record.shutil, "disk_usage", lambda _: SimpleNamespace(free=7))
    with pytest.raises(MachineError) as caught:
        record._write_tensors(tmp_path / "rank_0.safetensors", {"0": torch.zeros(2)})
    assert caught.value.code == "disk-full" and not list(tmp_path.iterdir())
