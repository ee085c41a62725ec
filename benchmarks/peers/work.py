"""What every tool is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from inputs import Inputs


@dataclass(frozen=True)
class Work:
    """Supervised fine-tuning with AdamW, constant seeds, no gradient checkpointing, no saving on the way."""

    inputs: Inputs
    steps: int
    tuner: str = "full"
    packing: bool = False
    max_length: int = 512
    precision: str = "bf16"
    """bf16 or fp32."""
    batch: int = 4
    """Sequences a step; with packing each holds up to `max_length` tokens."""

    def changed(self, **changes: object) -> Work:
        return replace(self, **changes)  # type: ignore[arg-type]


def write_yaml(path: Path, values: dict[str, object]) -> Path:
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path
