"""`ascendtune runs clean`"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ascendtune.cli.messages import confirm, notice, warn
from ascendtune.cli.options import Yes
from ascendtune.cli.run_names import complete_run, run_named
from ascendtune.cli.runs import find_runs, state_of
from ascendtune.cli.terminal import print_json, table
from ascendtune.core.checkpoint_names import best_step, checkpoints_in_use, runs_beside
from ascendtune.core.claim import Claim
from ascendtune.core.directories import disk_usage
from ascendtune.core.errors import AscendtuneError, MachineError
from ascendtune.core.files import remove_directory
from ascendtune.core.locks import file_lock
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of, format_bytes


def clean(
    runs: Annotated[
        Path,
        typer.Argument(help="Directory that contains run directories, or one run.", autocompletion=complete_run),
    ] = Path("runs"),
    every: Annotated[
        bool, typer.Option("--all", help="Of finished runs, all checkpoints: these runs cannot be trained further.")
    ] = False,
    yes: Yes = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; removes nothing without --yes.")
    ] = False,
) -> int:
    """Show the disk space of runs, and remove checkpoints that are not needed.

    \b
    ascendtune runs clean
    ascendtune runs clean runs/alpaca-qwen --all

    Kept are final weights, records, and of each run the newest and the best checkpoint and those that another run
    resumes from. Removed are other checkpoints, exported weights of checkpoints (RUN/exported), and what killed
    processes have left. Runs that train and runs of other users are left alone. Exit code 1: so are others, because
    they could not be read or claimed.
    """
    runs_below = find_runs(Path(run_named(runs)))
    spaces = _measured(runs_below, every=every)
    chosen = [each for each in spaces if each.removable]
    total = sum(each.removable_bytes for each in chosen)
    are_cleaned = list[bool]()
    if not as_json and (spaces or not runs_below):
        print(_table(spaces) if spaces else f"no runs in {runs}")
    is_asked = not yes and not as_json and sys.stdin.isatty()
    if chosen and (confirm(_question(chosen, total), yes=False) if is_asked else yes):
        are_cleaned = [_remove(each) for each in chosen]
    elif chosen and not is_asked:
        notice("nothing was removed: add --yes")
    if as_json:
        print_json([each.to_json() for each in spaces])
    elif removed := sum(each.removed_bytes for each in chosen):
        print(f"removed {format_bytes(removed)}", file=sys.stderr)
    elif spaces and not chosen:
        print("nothing to remove" + ("" if every else "; --all removes all checkpoints of finished runs"))
    return 0 if len(spaces) == len(runs_below) and all(are_cleaned) else 1


@dataclass
class _RunSpace:
    """The disk space of a run, and the directories in it that are not needed."""

    run: RunDir
    state: str
    sizes: dict[str, int]
    """Part -> bytes: checkpoints, exported, model, other."""
    removable: list[Path] = field(default_factory=list)
    removable_bytes: int = 0
    removed: list[Path] = field(default_factory=list)
    removed_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.run),
            "state": self.state,
            **{f"{part}_bytes": size for part, size in self.sizes.items()},
            "removable": [str(each) for each in self.removable],
            "removable_bytes": self.removable_bytes,
            "removed": [str(each) for each in self.removed],
        }


def _measured(runs: Sequence[RunDir], *, every: bool) -> list[_RunSpace]:
    """The space of each run; damaged and unreadable ones are reported and left out."""
    resumed_from, spaces = _resumed_from(runs), list[_RunSpace]()
    for run in runs:
        try:
            spaces.append(_space(run, state_of(run.read()), resumed_from, every=every))
        except (AscendtuneError, OSError) as error:
            warn(f"left alone: {run}: {error.what if isinstance(error, AscendtuneError) else error}")
    return spaces


def _resumed_from(runs: Sequence[RunDir]) -> set[Path]:
    """The checkpoints that unfinished runs resume from: `runs`, runs in the same directories, and those of jobs."""
    from ascendtune.job.registry import jobs

    beside = set[Path]().union(*map(runs_beside, runs))
    return checkpoints_in_use(beside | {job.run_dir for job in jobs()})


def _space(run: RunDir, state: str, resumed_from: set[Path], *, every: bool) -> _RunSpace:
    parts = {"checkpoints": run.checkpoints, "exported": run.path / "exported", "model": run.model}
    sizes = {name: disk_usage(path).size_bytes for name, path in parts.items()}
    space = _RunSpace(run, state, {**sizes, "other": disk_usage(run.path).size_bytes - sum(sizes.values())})
    if state == "running" or run.path.stat().st_uid != os.geteuid():
        return space
    is_whole = every and state == "finished" and run.model.is_dir()
    steps = run.checkpoint_steps()
    kept = set() if is_whole else {*steps[-1:], _best(run)}
    candidates = [run.checkpoint(step) for step in steps if step not in kept]
    candidates += [*run.checkpoints.glob(".step_*"), *run.path.glob(".model.*"), *_exports(run)]
    space.removable = [each for each in candidates if _is_directory(each) and each.resolve() not in resumed_from]
    space.removable_bytes = sum(disk_usage(each).size_bytes for each in space.removable)
    return space


def _best(run: RunDir) -> int | None:
    try:
        return best_step(run)
    except AscendtuneError:
        return None


def _exports(run: RunDir) -> Iterable[Path]:
    return (each for each in (run.path / "exported").glob("*") if each.name != ".lock")


def _is_directory(path: Path) -> bool:
    """Whether it is a directory itself: what a link leads to is not this run's."""
    return path.is_dir() and not path.is_symlink() and stat.S_ISDIR(path.lstat().st_mode)


def _remove(space: _RunSpace) -> bool:
    """Remove what is not needed, unless the run is in use meanwhile; returns whether it was removed."""
    run = space.run
    try:
        claim = Claim.take(run.path, on_full_disk=True)
        try:
            with file_lock(run.lock, wait=False) as is_free:
                if not is_free or state_of(run.read()) != space.state:
                    raise MachineError("the run is in use", code="run-in-use", remedy="wait for it", where=run.path)
                for each in filter(_is_directory, space.removable):
                    size = disk_usage(each).size_bytes
                    shutil.rmtree(each) if each.name.startswith(".") else remove_directory(each)
                    space.removed.append(each)
                    space.removed_bytes += size
        finally:
            claim.release()
    except (AscendtuneError, OSError) as error:
        warn(f"left alone: {run}: {error.what if isinstance(error, AscendtuneError) else error}")
        return False
    return True


def _question(chosen: Sequence[_RunSpace], total: int) -> str:
    count = sum(len(each.removable) for each in chosen)
    return f"Remove {count_of(count, 'directory', 'directories')} ({format_bytes(total)})?"


def _table(spaces: Sequence[_RunSpace]) -> str:
    header = ["run", "state", "checkpoints", "exported", "model", "other", "to remove", "bytes"]
    rows = [
        [
            str(each.run),
            each.state,
            *(format_bytes(size) for size in each.sizes.values()),
            ", ".join(path.name for path in each.removable) or "-",
            format_bytes(each.removable_bytes),
        ]
        for each in sorted(spaces, key=lambda each: sum(each.sizes.values()), reverse=True)
    ]
    return table(
        header, rows, right=[*header[2:6], "bytes"], spare=["exported", "other", "model", "checkpoints", "state"]
    )
