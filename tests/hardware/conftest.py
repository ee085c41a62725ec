"""Training on the device beside training on the CPU.

`ASCENDTUNE_HARDWARE=cpu` takes the CPU for the device: the small form of `make hardware`, which shows that the tests
run and nothing else.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.machine.torch_backend.device import Device
from ascendtune.machine.torch_backend.find import open_device
from ascendtune.train import attempt
from ascendtune.train.fit import FitResult, fit

WORDS = ["atom", "balanced", "capital", "clips", "diet", "friends", "healthy", "Paris", "sleep", "tips", "天气", "公园"]

TrainOn = Callable[..., FitResult]


@pytest.fixture(scope="session")
def device() -> Device:
    """The device under test."""
    if os.environ.get("ASCENDTUNE_HARDWARE") == "cpu":
        return open_device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    # cuBLAS reads it once; the runs that resume bit by bit need it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return open_device("cuda")


@pytest.fixture
def cpu() -> Device:
    return open_device("cpu")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 conversations of one turn, 15 to 60 tokens."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    with path.open("w") as file:
        for _ in range(48):
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(2, 8))) for _ in range(2)]
            file.write(json.dumps({"prompt": texts[0], "completion": texts[1]}) + "\n")
    return path


@pytest.fixture
def train_on(tiny_model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainOn]:
    """`train_on(device, "name", optim={"max_steps": 3})`: train the tiny model in this process, on that device."""
    monkeypatch.setattr(attempt, "draw", lambda run: None)

    def start(device: Device, name: str, *, trust_checkpoint: bool = False, **changes: Any) -> FitResult:
        recipe: dict[str, dict[str, Any]] = {
            "model": {"path": str(tiny_model)},
            "data": {"train": str(rows), "max_length": 128, "packing": False},
            "optim": {"learning_rate": 1e-3, "scheduler": "constant", "max_steps": 6},
            "batch": {"per_device": 4},
            "track": {"tensorboard": False},
            "checkpoint": {"every_steps": 1000},
        }
        for key, value in changes.items():
            recipe[key] = {**recipe.get(key, {}), **value} if isinstance(value, dict) else value
        named = {"name": name, "run_dir": str(tmp_path / "{name}"), **recipe}
        monkeypatch.setattr(attempt, "find_device", lambda index: device)
        return fit(named, trust_checkpoint=trust_checkpoint)

    yield start
    # What one test leaves in the allocator's cache must not count as another's peak.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
