"""Which strategy: as asked, or for `auto` by what the model needs and the device has."""

from __future__ import annotations

from pathlib import Path

from ascendtune.core.table import load
from ascendtune.machine.device import Device
from ascendtune.train.recipe import Recipe
from ascendtune.train.strategy import TABLE
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.strategy.group import started_by_torchrun


def join(recipe: Recipe, device: Device, model_directory: Path) -> Strategy:
    """The strategy of this process, with its process group, where it has one."""
    section = recipe.parallel
    name = section.strategy
    if name == "auto":
        name = "ddp"
    if name == "ddp" and not started_by_torchrun():
        return Strategy(device, section)
    kind: type[Strategy] = load(TABLE, name)
    strategy = kind(device, section)
    strategy.reason = "as asked"
    return strategy
