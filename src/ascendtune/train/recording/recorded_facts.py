"""recorded.json: what a recorded training was, beside what its steps computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ascendtune.core.foreign_json import read_json_object
from ascendtune.core.records import write_json
from ascendtune.train.dump.record import FORMAT


def write_facts(directory: Path, facts: dict[str, Any], optimizer: Any, *, step: int) -> None:
    """Write recorded.json at `step`, the first of a training or of its resumed part."""
    file = directory / "recorded.json"
    before = read_json_object(file).get("resumed_at", []) if file.exists() else []
    resumed = {"resumed_at": [*before, step]} if step > 1 else {}
    write_json(file, {"format": FORMAT, "torch": torch.__version__, **facts, **_optimizer_facts(optimizer), **resumed})


def _optimizer_facts(optimizer: Any) -> dict[str, Any]:
    """Class and settings of an optimizer: the numbers and flags of each group of parameters."""
    groups = [
        {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in group.items()
            if isinstance(value, bool | int | float | tuple)
        }
        for group in optimizer.param_groups
    ]
    return {"optimizer": type(optimizer).__name__, "optimizer_groups": groups}
