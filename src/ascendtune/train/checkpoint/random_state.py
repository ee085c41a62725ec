"""The random state of each rank, as a checkpoint keeps it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ascendtune.train.strategy.base import Strategy


def save_random_state(directory: Path, strategy: Strategy) -> None:
    """Write `rng/rank_R.safetensors`, flushed to disk."""
    from safetensors.torch import save

    content = {"cpu": torch.get_rng_state()}
    if (of_device := strategy.device.random_state()) is not None:
        content["device"] = of_device
    path = directory / "rng" / f"rank_{strategy.rank}.safetensors"
    with path.open("wb") as file:
        file.write(save(content))
        file.flush()
        os.fsync(file.fileno())


def read_random_state(directory: Path, strategy: Strategy) -> dict[str, torch.Tensor]:
    """This rank's; empty where fewer ranks wrote the checkpoint: the others keep the state that the seed gave them."""
    from safetensors.torch import load_file

    path = directory / "rng" / f"rank_{strategy.rank}.safetensors"
    return load_file(path) if path.exists() or strategy.is_main else {}


def restore_random_state(content: dict[str, torch.Tensor], strategy: Strategy) -> None:
    if "cpu" in content:
        torch.set_rng_state(content["cpu"])
    if "device" in content:
        strategy.device.set_random_state(content["device"])
