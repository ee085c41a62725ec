"""What a run directory says about its run, for the `runs` commands. Missing is None, never 0."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ascendtune.cli.complain import warn
from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.rundir import RunDir

_Read = TypeVar("_Read")

_DEPTH = 3


@dataclass(frozen=True)
class RunSummary:
    """One line of `runs list`."""

    name: str
    path: str
    state: str
    """As in run.json; or `died`: it says running, and no such process is on this machine; `damaged`; `unreadable`."""
    step: int | None
    loss: float | None
    tokens_per_second: float | None
    age_seconds: float | None
    """Since the newest attempt began."""

    @classmethod
    def of(cls, run: RunDir) -> RunSummary:
        try:
            record, last = run.read(), run.last_metrics() or {}
        except AscendtuneError as error:
            # One damaged run must not hide the others.
            warn(f"{error.what}: {error.where or run}")
            return cls._unknown(run, "damaged")
        except OSError as error:
            warn(f"may not be read: {error.filename or run}")
            return cls._unknown(run, "unreadable")
        attempts = record.get("attempts") or []
        began = number(attempts[-1].get("started") if attempts else record.get("created"))
        return cls(
            name=run.path.name,
            path=str(run),
            state=state_of(record),
            step=whole(last.get("step")),
            loss=number(last.get("loss")),
            tokens_per_second=number(last.get("tokens_per_second")),
            age_seconds=time.time() - began if began is not None else None,
        )

    @classmethod
    def _unknown(cls, run: RunDir, state: str) -> RunSummary:
        return cls(run.path.name, str(run), state, None, None, None, None)


def find_runs(directory: Path) -> list[RunDir]:
    """Run directories at or below `directory`, oldest first.

    Raises:
        InputError: there is no such directory.
    """
    if not directory.is_dir():
        raise InputError(
            "no such directory",
            remedy="give the directory that holds your runs; `ascendtune train` makes the first one",
            where=directory,
        )
    return sorted(_below(directory, _DEPTH), key=_changed)


def _below(directory: Path, depth: int) -> Iterator[RunDir]:
    run = RunDir(directory)
    try:
        # Also what is a link, a pipe or a device: it is shown as damaged.
        is_run = os.path.lexists(run.run_json)
        entries = [] if is_run or not depth else list(os.scandir(directory))
        inside = [each for each in entries if not each.name.startswith(".") and each.is_dir(follow_symlinks=False)]
    except PermissionError:
        # It may be a run; nobody may know.
        is_run, inside = True, []
    except OSError:
        # Removed in the meantime, or a directory of the kernel's that lists nothing.
        return
    if is_run:
        yield run
    for entry in inside:
        yield from _below(Path(entry.path), depth - 1)


def _changed(run: RunDir) -> float:
    """When run.json was changed, in seconds since the epoch; 0 where the run has been removed in the meantime."""
    for path in (run.run_json, run.path):
        with suppress(OSError):
            return path.lstat().st_ctime
    return 0.0


def state_of(record: dict[str, Any]) -> str:
    """The state, corrected for a process that could not write its end."""
    state, attempts = str(record["state"]), record.get("attempts") or []
    if state != "running" or not attempts:
        return state
    newest = attempts[-1]
    pid = whole(newest.get("pid"))
    is_here = newest.get("host", socket.gethostname()) == socket.gethostname()
    return "died" if is_here and pid is not None and not psutil.pid_exists(pid) else state


def number(value: Any) -> float | None:
    """`value` where it is a number, also one that is not finite: a loss may be."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def whole(value: Any) -> int | None:
    """`value` where it is a whole number that a process or a step may have."""
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def unless_damaged(read: Callable[[], _Read]) -> _Read | None:
    """What `read` reads; where that is damaged or may not be read, None and a warning: the rest can be shown."""
    try:
        return read()
    except AscendtuneError as error:
        warn(f"{error.what}: {error.where}")
    except PermissionError as error:
        warn(f"may not be read: {error.filename}")
    return None
