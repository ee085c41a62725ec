"""Names of checkpoints: `run@120`, `run@best`, `run@last`; and the checkpoint that an attempt resumes from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.core.errors import AscendtuneError, InputError

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir


def split_checkpoint_name(text: str) -> tuple[str, str | None]:
    """Split `RUN@CHECKPOINT`; the second part is None where the name has none. The name of an existing path is not
    split."""
    run, at, which = text.rpartition("@")
    is_checkpoint = which in ("best", "last") or (which.isascii() and which.isdecimal())
    if not at or not run or not is_checkpoint or Path(text).exists():
        return text, None
    return run, which


def named_checkpoint(run: RunDir, which: str) -> Path:
    """The directory of a complete checkpoint.

    Args:
        which: a step, `best` (the lowest evaluation loss) or `last`.

    Raises:
        InputError: the run has no such checkpoint; the remedy lists the existing ones.
    """
    steps = run.checkpoint_steps()
    step = _step(run, which, steps)
    if step not in steps:
        raise _missing(run, which, step, steps)
    return run.checkpoint(step)


def named_weights(run: RunDir, which: str) -> Path:
    """`named_checkpoint`, or the final weights of the run if the name means their step.

    Raises:
        InputError: the run has neither; the remedy lists the names that exist.
    """
    steps, final = run.checkpoint_steps(), _exported_step(run)
    known = steps if final is None else sorted({*steps, final})
    step = _step(run, which, known)
    if step == final:
        return run.model
    if step not in steps:
        raise _missing(run, which, step, known)
    return run.checkpoint(step)


def has_finished(record: Mapping[str, Any]) -> bool:
    """Whether the run, whose run.json is `record`, has nothing left to train.

    A finished run continues if the recipe names a checkpoint by its path.
    """
    return record["state"] == "finished" and not record.get("resume_from")


def checkpoint_to_load(run: RunDir, record: dict[str, Any]) -> Path | None:
    """The checkpoint that the next attempt in `run` resumes from; None if it starts at step 1.

    Args:
        record: run.json.
    """
    named, steps = record.get("resume_from"), run.checkpoint_steps()
    newest = run.checkpoint(steps[-1]) if steps else None
    # A run that was started from another run's checkpoint uses it until it has its own: a restart must not lose it.
    return Path(named) if named and (newest is None or is_checkpoint_of(run, Path(named))) else newest


def checkpoints_in_use(directories: Iterable[Path]) -> set[Path]:
    """The checkpoints, as resolved paths, that the unfinished runs in `directories` resume from."""
    from ascendtune.core.rundir import RunDir

    found = set[Path]()
    for run in map(RunDir, directories):
        # Which checkpoint an unreadable run resumes from cannot be known.
        with suppress(AscendtuneError, OSError):
            record = run.read()
            if not has_finished(record) and (source := checkpoint_to_load(run, record)) is not None:
                found.add(source.resolve())
    return found


def runs_beside(run: RunDir) -> set[Path]:
    """The directories of `run` and of the runs in the same directory."""
    return {each.parent for each in run.path.resolve().parent.glob("*/run.json")}


def is_checkpoint_of(run: RunDir, checkpoint: Path) -> bool:
    return checkpoint.resolve().parent == run.checkpoints.resolve()


def weight_names(run: RunDir) -> list[str]:
    """Valid names after `RUN@`, newest first."""
    final = _exported_step(run)
    steps = sorted({*run.checkpoint_steps(), *(() if final is None else (final,))}, reverse=True)
    return [*map(str, steps), *(("best", "last") if steps else ())]


def _exported_step(run: RunDir) -> int | None:
    """The step whose weights are in `RUN/model`; None if there are none, or run.json does not record the step."""
    step = run.read().get("exported_step")
    return step if isinstance(step, int) and run.model.is_dir() else None


def _step(run: RunDir, which: str, known: list[int]) -> int | None:
    if which == "last":
        return known[-1] if known else None
    return best_step(run) if which == "best" else int(which)


def _missing(run: RunDir, which: str, step: int | None, known: list[int]) -> InputError:
    if not known:
        return InputError(
            f"{run} has no checkpoint", code="checkpoint-missing", remedy="train it, with checkpoint.every_steps: N",
            where=run.path,
        )  # fmt: skip
    remedy = f"use one of: {', '.join(f'{run.path.name}@{each}' for each in known)}"
    if which != "best":
        what = f"{run}: the checkpoint of step {step} does not exist"
    elif step is None:
        what = f"{run} has no evaluations, so no checkpoint is the best"
    else:
        what = f"{run}: the best evaluation was at step {step}, and its checkpoint was not kept"
        remedy += "; checkpoint.best: true keeps the best one"
    return InputError(what, code="checkpoint-missing", remedy=remedy, where=run.checkpoints)


def best_step(run: RunDir) -> int | None:
    """The step of the lowest evaluation loss; None without evaluations.

    Raises:
        MachineError: the record of evaluations is damaged.
    """
    losses = {
        record["step"]: record["loss"]
        for record in run.comparable_evaluations()
        if isinstance(record.get("step"), int) and isinstance(record.get("loss"), int | float)
    }
    finite = {step: loss for step, loss in losses.items() if math.isfinite(loss)}
    return min(finite, key=lambda step: finite[step]) if finite else None
