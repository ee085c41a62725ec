"""Chooses the run directory of a start: one to resume, or a free name. Free of torch."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core.checkpoint_names import checkpoints_in_use, named_checkpoint, runs_beside, split_checkpoint_name
from ascendtune.core.claim import Claim, is_unfinished_start
from ascendtune.core.errors import AscendtuneError, MachineError, RecipeError
from ascendtune.core.files import expanded, require_writable
from ascendtune.core.locks import file_lock
from ascendtune.core.ownership import require_own
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.changes import ResumeOptions, kind_of_loss, leaves_of, require_same_adapter, require_same_recipe
from ascendtune.recipe.recipe import Recipe

_RESUME = "checkpoint.resume"
_ENDS = {"stopped": "it was stopped", "failed": "it had failed"}


@dataclass(frozen=True)
class RunChoice:
    """The run directory of a start, new or resumed."""

    run: RunDir
    resumed: Path | None
    """A checkpoint of this run to resume from."""
    foreign: Path | None
    """A checkpoint of another run to start from."""
    messages: list[str]
    record: dict[str, Any] = field(default_factory=dict)
    """run.json of the run whose checkpoint is resumed; the run's own is read after this start has claimed it."""


def choose_run(recipe: Recipe, resume_options: ResumeOptions) -> tuple[RunChoice, Claim]:
    """Find the run to resume, or a free name for a new run, and claim it.

    Two concurrent starts never choose the same run: a start chooses while it has claimed the newest run of the name,
    and releases that claim only after it has claimed its choice.

    Raises:
        RecipeError: the run was trained with another recipe, or the checkpoint in the recipe is missing.
        MachineError: another process trains the newest run of this name, the directory is not writable, or others may
            write it.
    """
    directory = recipe.run_directory()
    while True:
        newest = _newest_of_series(directory)
        with ExitStack() as stack:
            claim = stack.enter_context(_claim(newest))
            if _newest_of_series(directory).path != newest.path:
                continue  # another start has created a newer run meanwhile
            choice = _choose(recipe, newest, resume_options)
            # Nothing else removes the files that a process killed after its run had finished has left.
            newest.remove_unfinished()
            run_claim = claim if choice.run.path == newest.path else stack.enter_context(_claim(choice.run))
            # Another owner of the directory could replace the recipe before the worker reads it.
            require_own(choice.run.path, remedy="give this run another name: name=OTHER")
            stack.pop_all()
            if run_claim is not claim:
                claim.release()
            return choice, run_claim


def planned_run(recipe: Recipe, resume_options: ResumeOptions) -> RunChoice:
    """The choice that `choose_run` would make now, without claiming or writing anything.

    Raises:
        RecipeError: for the same reasons as in `choose_run`.
    """
    return _choose(recipe, _newest_of_series(recipe.run_directory()), resume_options)


def _choose(recipe: Recipe, newest: RunDir, resume_options: ResumeOptions) -> RunChoice:
    directory, resume = recipe.run_directory(), recipe.checkpoint.resume
    if resume not in ("auto", "never"):
        return _from_path(recipe, checkpoint_to_resume(recipe), newest, resume_options)
    if not newest.run_json.is_file():
        is_run = RunDir(directory).run_json.is_file()
        obstacle = f"{directory} exists" + ("" if is_run else " and is not a run")
        return RunChoice(newest, None, None, [] if newest.path == directory else [f"starting {newest}: {obstacle}"])
    record, steps = newest.read(), newest.checkpoint_steps()
    state = record["state"]
    if resume == "never":
        reason = "checkpoint.resume is never"
    elif state == "finished":
        reason = f"{newest} has finished"
    elif not steps:
        reason = f"{newest} has no checkpoint"
        if not newest.has_metrics():
            return RunChoice(
                newest, None, None, [f"starting over in {newest}: its last attempt ended before the first step"]
            )
    else:
        require_same_recipe(newest, recipe, resume_options)
        checkpoint = newest.checkpoint(steps[-1])
        _require_own(newest.checkpoints, checkpoint, resume_options)
        return RunChoice(
            newest,
            checkpoint,
            None,
            [f"resuming {newest} from step {steps[-1]}: {_ENDS.get(state, 'its process was lost')}"],
            record,
        )
    free = _next_of_series(directory)
    messages = [f"starting {free}: {reason}"]
    if resume == "auto":
        messages += [*_to_continue(newest, state, recipe, resume_options), *_unfinished_before(newest, directory)]
    return RunChoice(free, None, None, messages)


def _to_continue(run: RunDir, state: str, recipe: Recipe, resume_options: ResumeOptions) -> list[str]:
    """A message on how to train a finished run further, if the recipe asks for another number of steps."""
    if state != "finished" or not run.checkpoint_steps():
        return []
    with suppress(AscendtuneError, OSError):
        before = Recipe.load(run.recipe).optim
        changed = [key for key in ("epochs", "max_steps") if getattr(before, key) != getattr(recipe.optim, key)]
        if changed:
            options = resume_options.changing(*(f"optim.{key}" for key in changed))
            return [f"to train {run} further instead, add {shlex.quote(f'{_RESUME}={run.path.name}@last')} {options}"]
    return []


def _unfinished_before(newest: RunDir, directory: Path) -> list[str]:
    """A message on resuming the newest unfinished run before `newest`, as a start considers `newest` alone."""
    runs = _runs_of_series(directory)
    for number in sorted(runs, reverse=True):
        earlier = RunDir(runs[number])
        end = _ENDS.get(_run_value(earlier.path, "state"))
        if end and earlier.path != newest.path and (steps := earlier.checkpoint_steps()):
            more = shlex.quote(f"{_RESUME}={earlier.path.name}@{steps[-1]}")
            return [f"{earlier} is not finished, {end} (step {steps[-1]}): to continue it instead, add {more}"]
    return []


def checkpoint_to_resume(recipe: Recipe) -> Path:
    """The checkpoint in `checkpoint.resume`: a path, or `run@120`, where `run` is a path or the name of a sibling.

    Raises:
        InputError: the run has no such checkpoint.
    """
    name, checkpoint = split_checkpoint_name(recipe.checkpoint.resume)
    if checkpoint is None:
        return expanded(recipe.checkpoint.resume)
    sibling = recipe.run_directory().parent / name
    return named_checkpoint(RunDir.open(sibling if sibling.is_dir() else name), checkpoint)


def require_checkpoint(checkpoint: Path) -> None:
    """Raise RecipeError if `checkpoint` is not a complete checkpoint."""
    if not checkpoint.is_dir():
        raise RecipeError(
            f"{_RESUME}: no such checkpoint",
            code="checkpoint-missing",
            remedy=_checkpoint_remedy(checkpoint),
            where=checkpoint,
        )
    if (checkpoint / "trainer_state.json").is_file():
        is_adapter = (checkpoint / "adapter_config.json").is_file()
        start = f"method.lora.start_from=[{checkpoint}]" if is_adapter else f"model.path={checkpoint}"
        raise RecipeError(
            f"{_RESUME}: this is a checkpoint of transformers' Trainer, whose optimizer state is not read",
            code="checkpoint-of-another-tool",
            remedy=f"start anew from its weights: {shlex.quote(start)} in place of {_RESUME}",
            where=checkpoint,
        )
    parts = (checkpoint / "state.json", checkpoint / "digests.json")
    if not all(part.is_file() for part in parts):
        raise RecipeError(
            f"{_RESUME}: not a complete checkpoint",
            code="checkpoint-incomplete",
            remedy="give a directory that contains state.json and digests.json",
            where=checkpoint,
        )


def _checkpoint_remedy(missing: Path) -> str:
    """A remedy with the checkpoints of the run that contains the path: other tools write `RUN/checkpoint-100`."""
    run = next((RunDir(each) for each in missing.parents[:2] if (each / "run.json").is_file()), None)
    steps = run.checkpoint_steps() if run else []
    if run is None or not steps:
        return "give a directory like runs/NAME/checkpoints/step_100, or NAME@100"
    number = re.search(r"\d+$", missing.name)
    if number and int(number[0]) in steps:
        return shlex.quote(f"{_RESUME}={run.checkpoint(int(number[0]))}")
    return f"this run has: {', '.join(f'{run.path.name}@{step}' for step in steps)}"


def _from_path(recipe: Recipe, checkpoint: Path, newest: RunDir, resume_options: ResumeOptions) -> RunChoice:
    require_checkpoint(checkpoint)
    # A symbolic link is resolved: permissions are those of its target.
    place = checkpoint.resolve()
    _require_own(place.parent, place, resume_options)
    directory, owner = recipe.run_directory(), RunDir(place.parent.parent)
    own = next((path for path in _runs_of_series(directory).values() if path.resolve() == owner.path), None)
    if own is not None and owner.run_json.is_file():
        require_same_recipe(owner, recipe, resume_options)
        _require_later_unused(owner, checkpoint)
        return RunChoice(RunDir(own), checkpoint, None, [f"resuming {own} from {checkpoint}: as asked"], owner.read())
    if owner.recipe.is_file():
        other = Recipe.load(owner.recipe)
        _require_same_loss(owner, other, recipe, checkpoint)
        require_same_adapter(owner, other, recipe, checkpoint)
    run = _next_of_series(directory) if newest.run_json.is_file() else newest
    record = owner.read() if owner.run_json.is_file() else {}
    return RunChoice(run, None, place, [f"starting {run} from {checkpoint}: as asked"], record)


def _require_later_unused(run: RunDir, checkpoint: Path) -> None:
    """Raise if another run resumes from a later checkpoint of `run`, which a start from `checkpoint` removes."""
    steps = run.checkpoint_steps()
    begins_at = next((step for step in steps if run.checkpoint(step).resolve() == checkpoint.resolve()), None)
    in_use = checkpoints_in_use(runs_beside(run) - {run.path.resolve()})
    lost = [step for step in steps if begins_at and step > begins_at and run.checkpoint(step).resolve() in in_use]
    if lost:
        raise RecipeError(
            f"{_RESUME}: a start from step {begins_at} removes later checkpoints, and another run resumes from that of "
            f"step {lost[-1]}",
            code="checkpoint-in-use",
            remedy="give this run another name: name=OTHER; or let the other run make its own checkpoint first",
            where=run.checkpoint(lost[-1]),
        )


def _require_same_loss(owner: RunDir, other: Recipe, recipe: Recipe, checkpoint: Path) -> None:
    """Raise if the checkpoint's run had another loss: its step, optimizer state and reference would be wrong.

    Args:
        other: the recipe of that run.
    """
    before, after = (kind_of_loss(leaves_of(each.model_dump(mode="json"))) for each in (other, recipe))
    if before != after:
        weights = shlex.quote(f"model.path={owner}/model")
        if other.method.adapter is not None:
            weights = shlex.quote(f"method.{other.method.tuner}.start_from=[{owner}]")
        raise RecipeError(
            f"{_RESUME}: the checkpoint is of a run with another loss ({before} -> {after})",
            code="recipe-changed",
            remedy=f"train its weights from step 1 on: {weights}, without {_RESUME}",
            where=checkpoint,
        )


def _require_own(checkpoints: Path, checkpoint: Path, resume_options: ResumeOptions) -> None:
    if not resume_options.trust_checkpoint:
        require_own(checkpoints, checkpoint, remedy=f"add {resume_options.trusting}")


def _series(directory: Path) -> dict[int, Path]:
    """The existing files of a series: `name` is number 1, `name-2` number 2, …; run directories and others."""
    pattern = re.compile(re.escape(directory.name) + r"(?:-(\d+))?")
    entries = directory.parent.iterdir() if directory.parent.is_dir() else iter(())
    matches = ((pattern.fullmatch(entry.name), entry) for entry in entries)
    return {int(match.group(1) or 1): entry for match, entry in matches if match}


def _runs_of_series(directory: Path) -> dict[int, Path]:
    """`_series` without runs that a user has given such a name: these are different runs."""
    return {
        number: path
        for number, path in _series(directory).items()
        if number == 1 or _run_value(path, "name") != path.name
    }


def _run_value(path: Path, key: str) -> Any:
    """A value of run.json; None if it is missing or cannot be read."""
    try:
        return RunDir(path).read().get(key)
    except (AscendtuneError, OSError):
        return None


def _newest_of_series(directory: Path) -> RunDir:
    """The newest run; if there is none, the directory of the first.

    A start that has not written run.json yet counts: it holds its claim, or was killed and left a directory to use.
    """
    runs = {
        number: path
        for number, path in _runs_of_series(directory).items()
        if RunDir(path).run_json.is_file() or is_unfinished_start(path)
    }
    if runs:
        return RunDir(runs[max(runs)])
    is_free = not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))
    return RunDir(directory) if is_free else _next_of_series(directory)


def _next_of_series(directory: Path) -> RunDir:
    series = _series(directory)
    return RunDir(directory.with_name(f"{directory.name}-{max(series) + 1}") if series else directory)


def _claim(run: RunDir) -> Claim:
    """Claim `run` for this start.

    Raises:
        MachineError: another process trains it, or the directory is not writable.
    """
    require_writable(run.path)
    with ExitStack() as stack:
        claim = stack.enter_context(Claim.take(run.path))
        if run.run_json.is_file():
            _require_untrained(run)
        stack.pop_all()
        return claim


def _require_untrained(run: RunDir) -> None:
    """Raise if a worker whose starter was killed still trains."""
    with file_lock(run.lock, wait=False) as is_free:
        if not is_free:
            raise MachineError(
                "this run is being trained by another process",
                code="run-in-use",
                remedy="wait for it, or give this one another name: name=OTHER",
                where=run.path,
            )
