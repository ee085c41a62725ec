"""Whether the disk will hold what a run writes: asked before the first step, not at the last one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ascendtune.core.directories import require_free_space
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of, format_bytes
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import CheckpointSection
from ascendtune.train.optimizer import states_of


def require_room(run: RunDir, recipe: Recipe, model: nn.Module, export_dtype: torch.dtype, checkpoints: int) -> None:
    """Hold what is free against the most that checkpoints and the final model take at once.

    Args:
        checkpoints: how many will be written until the end.

    Raises:
        MachineError: not enough.
    """
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad]
    exported = trained if recipe.method.tuner == "lora" else parameters
    checkpoint = sum(each.numel() * each.element_size() for each in trained) * (1 + states_of(recipe.optim))
    final = sum(each.numel() for each in exported) * export_dtype.itemsize
    at_once = _at_once(recipe.checkpoint, checkpoints)
    needed = at_once * checkpoint + final - _size(run.checkpoints)
    written = f"{count_of(at_once, 'checkpoint')} of {format_bytes(checkpoint)} at once and " if at_once else ""
    can_keep_fewer = _at_once(recipe.checkpoint, checkpoints, keep=1) < at_once
    require_free_space(
        run.path,
        needed,
        f"this run will write {format_bytes(at_once * checkpoint + final)} ({written}a model of {format_bytes(final)})",
        remedy=f"free space, {'lower checkpoint.keep, ' if can_keep_fewer else ''}or put run_dir on another disk",
    )


def _at_once(section: CheckpointSection, planned: int, keep: int | None = None) -> int:
    # While one is written, all that are kept still stand.
    return min((keep or section.keep) + section.best + 1, planned)


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
