"""What a run directory says about its run, for the `runs` commands. Missing is None, never 0."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.rundir import RunDir

_DEPTH = 3
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class RunSummary:
    """One line of `runs list`."""

    name: str
    path: str
    state: str
    """As in run.json, or `died`: it says running, and no such process is on this machine."""
    step: int | None
    loss: float | None
    tokens_per_second: float | None
    age_seconds: float | None
    """Since the newest attempt began."""

    @classmethod
    def of(cls, run: RunDir) -> RunSummary:
        try:
            record, last = run.read(), last_metrics(run) or {}
        except (AscendtuneError, ValueError):
            # One damaged run must not hide the others.
            return cls(run.path.name, str(run), "damaged", None, None, None, None)
        attempts = record.get("attempts") or []
        began = attempts[-1].get("started") if attempts else record.get("created")
        return cls(
            name=run.path.name,
            path=str(run),
            state=state_of(record),
            step=last.get("step"),
            loss=last.get("loss"),
            tokens_per_second=last.get("tokens_per_second"),
            age_seconds=time.time() - began if began is not None else None,
        )


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
    return sorted(_below(directory, _DEPTH), key=lambda run: run.run_json.stat().st_ctime)


def _below(directory: Path, depth: int) -> Iterator[RunDir]:
    run = RunDir(directory)
    if run.run_json.is_file():
        yield run
    elif depth:
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _below(Path(entry.path), depth - 1)


def state_of(record: dict[str, Any]) -> str:
    """The state, corrected for a process that could not write its end."""
    state, attempts = str(record["state"]), record.get("attempts") or []
    if state != "running" or not attempts:
        return state
    newest = attempts[-1]
    is_here = newest.get("host", socket.gethostname()) == socket.gethostname()
    return "died" if is_here and not psutil.pid_exists(newest["pid"]) else state


def last_metrics(run: RunDir) -> dict[str, Any] | None:
    """The newest whole line of metrics.jsonl, without reading the rest."""
    if not run.metrics.is_file():
        return None
    with run.metrics.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
    lines = tail[: tail.rfind(b"\n") + 1].splitlines()
    return json.loads(lines[-1]) if lines else None
