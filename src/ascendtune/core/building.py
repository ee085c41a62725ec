"""Directories that are built beside their place under a lock, and what killed processes left of them.

The lock is the kernel's: a directory whose lock is free has nobody who builds it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from ascendtune.core.files import file_lock

_PREFIX = ".building-"


def building_of(directory: Path, name: str) -> Path:
    """Where the entry `name` of `directory` is built."""
    return directory / f"{_PREFIX}{name}"


def lock_of(directory: Path, name: str) -> Path:
    """The file whose lock is held by whoever builds `name`."""
    return directory / f".{name}.lock"


def abandoned(directory: Path) -> Iterator[Path]:
    """What is half built in `directory` by nobody.

    Raises:
        MachineError: a lock cannot be tried.
    """
    for building in sorted(directory.glob(f"{_PREFIX}*")):
        with file_lock(_lock_for(building), wait=False) as is_free:
            if is_free:
                yield building


def remove_abandoned(building: Path) -> bool:
    """Remove what `abandoned` found; False when somebody has begun to build it meanwhile."""
    with file_lock(_lock_for(building), wait=False) as is_free:
        if is_free:
            shutil.rmtree(building, ignore_errors=True)
        return is_free


def _lock_for(building: Path) -> Path:
    return lock_of(building.parent, building.name.removeprefix(_PREFIX))
