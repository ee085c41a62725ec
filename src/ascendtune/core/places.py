"""The two places beside run directories that are written: the cache and the job registry (XDG)."""

from __future__ import annotations

import os
from pathlib import Path

from ascendtune.core.errors import MachineError, translated_disk_errors
from ascendtune.core.files import require_writable


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/ascendtune`: prepared tokens and downloads; safe to delete."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_directory() -> Path:
    """`$XDG_STATE_HOME/ascendtune`: the job registry."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def require_writable_place(directory: Path, variable: str) -> None:
    """Raise unless `directory` is there, or can be made, and can be written.

    Raises:
        MachineError: the remedy names the variable that puts it elsewhere.
    """
    try:
        require_writable(directory)
        with translated_disk_errors(directory, "making a directory"):
            directory.mkdir(parents=True, exist_ok=True)
    except MachineError as error:
        remedy = f"export {variable}=<a directory that can be written>"
        raise MachineError(error.what, remedy=remedy, where=error.where or directory) from error


def _xdg(variable: str, default: str) -> Path:
    # The XDG specification says that relative paths are invalid and must be ignored.
    given = Path(os.environ.get(variable, ""))
    return (given if given.is_absolute() else Path.home() / default) / "ascendtune"
