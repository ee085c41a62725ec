"""The states of a rank's random number generators in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from ascendtune.train.strategy.base import Strategy


def random_file(rank: int) -> str:
    """The file of a rank, in the directory of the checkpoint."""
    return f"rng/rank_{rank}.safetensors"


def packed_random_state(strategy: Strategy) -> bytes:
    """This rank's random states as a safetensors file: `cpu` and, if the device has one, `device`, (bytes,) uint8."""
    from safetensors.torch import save

    content = {"cpu": torch.get_rng_state()}
    if (of_device := strategy.device.random_state()) is not None:
        content["device"] = of_device
    packed: bytes = save(content)
    return packed


def read_random_state(directory: Path, strategy: Strategy) -> dict[str, torch.Tensor]:
    """This rank's random states, (bytes,) uint8 each; empty if fewer ranks wrote the checkpoint.

    Additional ranks keep the state from the seed.
    """
    from safetensors.torch import load_file

    path = directory / random_file(strategy.rank)
    return load_file(path) if path.exists() or strategy.is_main else {}


def restore_random_state(content: dict[str, torch.Tensor], strategy: Strategy) -> None:
    """Set the generators of host and device to the result of `read_random_state`, (bytes,) uint8 each."""
    if "cpu" in content:
        torch.set_rng_state(content["cpu"])
    if "device" in content:
        strategy.device.set_random_state(content["device"])
