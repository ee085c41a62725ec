"""`doctor --fix`: decides which findings can be repaired safely, need the user's shell, or are left to the user.

It only removes files in ascendtune's own cache and job registry, and creates cache directories. It never changes the
system or packages.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ascendtune.check.doctor.check import Examination
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding
from ascendtune.core.directories import abandoned, remove_abandoned
from ascendtune.core.errors import MachineError, translated_disk_errors
from ascendtune.core.files import unfinished_files, walk
from ascendtune.core.procfs import stat_of
from ascendtune.core.units import format_bytes

_STATEMENT = r"(?:export \w+=[\w:,./-]+|unset \w+(?: \w+)*)"
_SHELL_LINE = re.compile(rf"{_STATEMENT}(?:; {_STATEMENT})*")
"""Remedies that are shell commands without placeholders or other words."""
_ABANDONED_SECONDS = 24 * 3600
"""An unfinished file may belong to a process of another machine, whose pid is unknown here, so it must also be old."""


@dataclass(frozen=True)
class FixAction:
    """A repair by `--fix`. `do` raises MachineError; repeating it has no effect."""

    what: str
    do: Callable[[], object]


@dataclass(frozen=True)
class FixPlan:
    """`shell`: lines for the calling shell, whose variables a program cannot set. `left`: findings for the user."""

    actions: tuple[FixAction, ...]
    shell: tuple[str, ...]
    left: tuple[Finding, ...]

    def as_json(self, done: Collection[FixAction]) -> dict[str, Any]:
        """As JSON; `done` are the actions that succeeded."""
        left = [{"code": each.code, "remedy": each.remedy} for each in self.left]
        actions = [{"what": each.what, "done": each in done} for each in self.actions]
        return {"actions": actions, "shell": list(self.shell), "left": left}


def plan_fixes(examination: Examination, system: System) -> FixPlan:
    """The possible repairs of the findings. Changes nothing."""
    troubles = [each for each in examination.findings if each.status in ("warning", "failure")]
    lines = [each.remedy for each in troubles if each.remedy and _SHELL_LINE.fullmatch(each.remedy)]
    left = tuple(each for each in troubles if each.remedy not in lines)
    actions = (*_missing_directories(system), *_half_built(system), *_half_written(system))
    return FixPlan(actions, tuple(dict.fromkeys(lines)), left)


def _missing_directories(system: System) -> Iterator[FixAction]:
    named = (Path(system.env[name]) for name in ("HF_HOME", "HF_HUB_CACHE", "MODELSCOPE_CACHE") if system.env.get(name))
    for directory in dict.fromkeys((system.cache, *named)):
        if directory.is_absolute() and not directory.exists() and _may_be_made(directory):
            what = say("create the cache directory {path}", path=directory)
            yield FixAction(what, partial(_make, directory))


def _may_be_made(directory: Path) -> bool:
    """Whether the parent exists: a directory must not be created in place of a disk that is not mounted."""
    parent = directory.parent if directory.parent.exists() else directory.parent.parent
    return parent.is_dir() and os.access(parent, os.W_OK) and parent != Path("/")


def _make(directory: Path) -> None:
    with translated_disk_errors(directory, "creating a directory"):
        directory.mkdir(parents=True, exist_ok=True)


def _half_built(system: System) -> Iterator[FixAction]:
    found: list[Path] = []
    # What this user may not look at, such as a cache of another one, is not repaired.
    with suppress(MachineError, OSError):
        found = list(abandoned(system.cache / "tokens"))
    for building in found:
        size = format_bytes(sum(_size(path / name) for path, _, names in walk(building) for name in names))
        what = say("remove {path} ({size}): data that a killed process was preparing", path=building, size=size)
        yield FixAction(what, partial(remove_abandoned, building))


def _size(path: Path) -> int:
    """In bytes; 0 where it was removed meanwhile."""
    with suppress(OSError):
        return path.lstat().st_size
    return 0


def _half_written(system: System) -> Iterator[FixAction]:
    for directory in dict.fromkeys((system.cache, system.cache / "tokens", system.state / "jobs")):
        unfinished: list[Path] = []
        with suppress(OSError):
            unfinished = unfinished_files(directory)
        for path in filter(_is_abandoned, unfinished):
            what = say("remove {path}: a killed process was writing it", path=path)
            yield FixAction(what, partial(_remove, path))


def _is_abandoned(path: Path) -> bool:
    try:
        old = time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    except OSError:
        return False
    return old and stat_of(int(path.name.rpartition(".")[2])) is None


def _remove(path: Path) -> None:
    with translated_disk_errors(path, "removing a file"):
        path.unlink(missing_ok=True)
