"""Which run directory a start takes: one to go on in, or a free name. Free of torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.core.files import file_lock
from ascendtune.core.rundir import RunDir
from ascendtune.train.changes import require_same_recipe
from ascendtune.train.recipe import Recipe

_RESUME = "checkpoint.resume"


@dataclass(frozen=True)
class Choice:
    """A run directory, new or to go on in."""

    run: RunDir
    resumed: Path | None
    """A checkpoint of this run to go on from."""
    foreign: Path | None
    """A checkpoint of another run to start from."""
    messages: list[str]


def choose_run(recipe: Recipe, allow_change: Sequence[str], trust_checkpoint: bool) -> Choice:
    """Find the run that this start goes on in, or a free name for a new one.

    Raises:
        RecipeError: the run was trained with another recipe, or the checkpoint that is asked for is not there.
        MachineError: somebody else is training the run.
    """
    wanted, resume = recipe.run_directory(), recipe.checkpoint.resume
    newest = _newest_of_series(wanted)
    if newest is not None:
        require_free(newest)
    if resume not in ("auto", "never"):
        return _from_path(recipe, Path(resume), wanted, allow_change, trust_checkpoint)
    if newest is None:
        if wanted.exists() and not (wanted.is_dir() and not any(wanted.iterdir())):
            free = RunDir(_next_of_series(wanted))
            return Choice(free, None, None, [f"starting {free}: {wanted} exists and is not a run"])
        return Choice(RunDir(wanted), None, None, [])
    state, steps = newest.read()["state"], newest.checkpoint_steps()
    if resume == "never":
        reason = "checkpoint.resume is never"
    elif state == "finished":
        reason = f"{newest} has finished"
    elif not steps:
        reason = f"{newest} has no checkpoint"
        if not newest.has_metrics():
            return Choice(
                newest, None, None, [f"starting over in {newest}: its last attempt ended before the first step"]
            )
    else:
        require_same_recipe(newest, recipe, allow_change)
        checkpoint = newest.checkpoint(steps[-1])
        return Choice(
            newest,
            checkpoint,
            None,
            [f"resuming {newest} from step {steps[-1]}: it was {state} and has this checkpoint"],
        )
    free = RunDir(_next_of_series(wanted))
    return Choice(free, None, None, [f"starting {free}: {reason}"])


def require_checkpoint(checkpoint: Path) -> None:
    """Raise RecipeError when there is no whole checkpoint."""
    if not checkpoint.is_dir():
        raise RecipeError(
            f"{_RESUME}: no such checkpoint",
            remedy="give a directory like runs/NAME/checkpoints/step_100",
            where=checkpoint,
        )
    parts = (checkpoint / "state.json", checkpoint / "digests.json")
    if not all(part.is_file() for part in parts):
        raise RecipeError(
            f"{_RESUME}: not a complete checkpoint",
            remedy="give a directory that holds state.json and digests.json",
            where=checkpoint,
        )


def _from_path(
    recipe: Recipe, checkpoint: Path, wanted: Path, allow_change: Sequence[str], trust_checkpoint: bool
) -> Choice:
    require_checkpoint(checkpoint)
    owner = RunDir(checkpoint.resolve().parent.parent)
    own = next((path for path in _series(wanted).values() if path.resolve() == owner.path), None)
    if own is not None and owner.run_json.is_file():
        require_free(owner)
        require_same_recipe(owner, recipe, allow_change)
        return Choice(RunDir(own), checkpoint, None, [f"resuming {own} from {checkpoint}: as asked"])
    if not trust_checkpoint:
        raise RecipeError(
            f"{_RESUME}: this checkpoint belongs to another run, and its metadata is a pickle, which can run code",
            remedy="add --trust-checkpoint when you know who wrote it",
            where=checkpoint,
        )
    run = RunDir(wanted if _newest_of_series(wanted) is None else _next_of_series(wanted))
    return Choice(run, None, checkpoint.resolve(), [f"starting {run} from {checkpoint}: as asked"])


def _series(wanted: Path) -> dict[int, Path]:
    """`name` is number 1, `name-2` number 2, …: those that exist as run directories or otherwise."""
    pattern = re.compile(re.escape(wanted.name) + r"(?:-(\d+))?")
    entries = wanted.parent.iterdir() if wanted.parent.is_dir() else iter(())
    found = ((pattern.fullmatch(entry.name), entry) for entry in entries)
    return {int(match.group(1) or 1): entry for match, entry in found if match}


def _newest_of_series(wanted: Path) -> RunDir | None:
    runs = {number: RunDir(path) for number, path in _series(wanted).items() if RunDir(path).run_json.is_file()}
    return runs[max(runs)] if runs else None


def _next_of_series(wanted: Path) -> Path:
    taken = _series(wanted)
    return wanted.with_name(f"{wanted.name}-{max(taken) + 1}") if taken else wanted


def require_free(run: RunDir) -> None:
    """Raise while another process trains `run`."""
    with file_lock(run.lock, wait=False) as free:
        if not free:
            raise MachineError(
                "this run is being trained by another process",
                remedy="wait for it, or give this one another name: name=OTHER",
                where=run.path,
            )
