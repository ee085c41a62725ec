"""Names of runs and recipe keys on the command line: their meaning, and their completion in the shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from ascendtune.core.checkpoint_names import named_weights, split_checkpoint_name, weight_names
from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.suggest import did_you_mean

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir

_RUNS = Path("runs")
_PLAIN = re.compile(r"[\w.-]+")
"""Valid `name` of a recipe, and a state. The shell inserts completions unquoted into the command line."""


def run_named(text: str | Path, *, or_logs: bool = False) -> str:
    """The directory of the run that `runs list` or `jobs list` shows under this name; other text is returned unchanged.

    An existing path takes precedence, with a warning if a run has its name; then a run below `runs/` of the working
    directory, then the run of a job.

    Args:
        or_logs: whether a job without a run, such as one of `launch`, means the directory of its logs.

    Raises:
        InputError: the text names a checkpoint, as `run@120`, and the command takes runs.
    """
    name = str(text)
    run, which = split_checkpoint_name(name)
    if which is not None:
        raise InputError(
            f"{name} names a checkpoint, and this command takes a run",
            code="checkpoint-not-taken",
            remedy=f"give {run}; chat, generate, merge, push and the recipe key checkpoint.resume take checkpoints",
        )
    found = _run_of_name(name, or_logs=or_logs)
    if found is not None and Path(name).exists():
        from ascendtune.cli.messages import warn

        warn(f"{name} is read as the path {Path(name).absolute()}; for the run of this name give {found}")
        return name
    return found or name


def _run_of_name(name: str, *, or_logs: bool = False) -> str | None:
    if "/" in name or name in ("", "-"):
        return None
    named = [run for run in _runs() if run.path.name == name]
    if len(named) == 1:
        return str(named[0])
    return None if Path(name).exists() else _run_of_job(name, or_logs=or_logs)


def weights_named(text: str | Path, *, trust_remote_code: bool = False) -> str:
    """`run_named` for commands that use weights; a checkpoint, `run@120`, `run@best` or `run@last`, is exported first.

    Args:
        trust_remote_code: the export may run the Python code in the directory of the base model.

    Raises:
        InputError: the run does not exist, it has no such checkpoint, or its base model needs code that may not be run.
        MachineError: the checkpoint is damaged, or the disk is full.
    """
    refuse_recipe(text)
    _refuse_missing_run(Path(text))
    run, which = split_checkpoint_name(str(text))
    if which is None:
        return run_named(text)
    from ascendtune.core.rundir import RunDir

    directory = RunDir.open(run_named(run))
    weights = named_weights(directory, which)
    if weights == directory.model:
        return str(weights)
    # Imported here: it imports torch, which an error for a wrong name need not wait for.
    from ascendtune.train.checkpoint_weights import checkpoint_weights

    return str(checkpoint_weights(directory, weights, trust_remote_code=trust_remote_code))


def refuse_recipe(text: str | Path) -> None:
    """Raises:
    InputError: the text names a recipe, but weights are needed; the remedy names its run, or the next command.
    """
    path = Path(text)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return
    from ascendtune.recipe.recipe import Recipe

    # A recipe of LLaMA-Factory for merging or chat is answered with the command.
    run = Recipe.load(path).run_directory()
    raise InputError(
        "this is a recipe, and a model or a run is needed",
        code="not-a-directory",
        remedy=f"give the run that it trained: {run}",
        where=path,
    )


def _refuse_missing_run(path: Path) -> None:
    """Raise for the path of a run that does not exist, which could also be the id of a model on a hub, as `runs/qa`."""
    folder = path.parent
    if path.exists() or folder == Path() or split_checkpoint_name(str(path))[1] is not None:
        return
    runs = [each.parent.name for each in folder.glob("*/run.json")]
    if not runs and path.parts[:-1] != _RUNS.parts:
        return
    is_id = len(path.parts) == 2 and folder != _RUNS
    otherwise = f"for a model on a hub give hf:{path}" if is_id else "`ascendtune runs list` shows the runs"
    raise InputError(
        "no such run",
        code="path-missing",
        remedy=did_you_mean(path.name, runs, otherwise),
        where=path,
    )


def model_named(text: str, *, trust_remote_code: bool = False) -> str:
    """`weights_named` for commands that also take the id of a model on a hub, which a misspelt run looks like."""
    name = weights_named(text, trust_remote_code=trust_remote_code)
    if "/" in name or ":" in name or Path(name).exists():
        return name
    if suggestion := did_you_mean(name, [run.path.name for run in _runs()]):
        from ascendtune.cli.messages import warn

        warn(f"there is no run '{name}': the hub is searched for a model of this name; {suggestion}")
    return name


def _run_of_job(name: str, *, or_logs: bool) -> str | None:
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.registry import jobs

    matching = [job for job in jobs() if name in (job.id, job.name)]
    if not matching:
        return None
    newest = matching[-1]
    if RunDir(newest.run_dir).run_json.is_file():
        return str(newest.run_dir)
    return str(newest.logs) if or_logs and newest.logs.is_dir() else None


def _runs() -> list[RunDir]:
    from ascendtune.cli.runs import find_runs

    return find_runs(_RUNS) if _RUNS.is_dir() else []


def complete_run(incomplete: str) -> list[tuple[str, str]]:
    """Names of runs that begin with `incomplete`, newest first, each with its state; no name with shell syntax."""
    from ascendtune.cli.runs import state_of

    shown = []
    for run in reversed([run for run in _runs() if run.path.name.startswith(incomplete)]):
        # No warnings during completion in a shell.
        with suppress(AscendtuneError, OSError):
            shown.append((run.path.name, state_of(run.read())))
    return [each for each in shown if all(map(_PLAIN.fullmatch, each))]


def complete_weights(incomplete: str) -> list[tuple[str, str]]:
    """`complete_run`; after `@` the checkpoints of the run, newest first."""
    from ascendtune.core.rundir import RunDir

    run, at, which = incomplete.rpartition("@")
    if not at:
        return complete_run(incomplete)
    # No warnings during completion in a shell.
    with suppress(AscendtuneError, OSError):
        directory = RunDir(run if Path(run).exists() else _run_of_name(run) or run)
        return [(f"{run}@{name}", "checkpoint") for name in weight_names(directory) if name.startswith(which)]
    return []


def complete_key(incomplete: str) -> list[tuple[str, str]]:
    """Recipe keys that begin with `incomplete`, as `optim.learning_rate=`, with explanations; after `=` the key's
    values."""
    from ascendtune.recipe.recipe import Recipe

    known, equals, begun = incomplete.partition("=")
    if not equals:
        return [(f"{key}=", about) for key, _, about in _keys(Recipe, ()) if key.startswith(incomplete)]
    completions = [f"{key}={value}" for key, kind, _ in _keys(Recipe, ()) if key == known for value in _values(kind)]
    if known == "data.template":
        from ascendtune.data.spec import NAMED

        completions += [f"{known}={name}" for name in ("auto", *NAMED)]
    words = [(each, "") for each in dict.fromkeys(completions) if each.startswith(incomplete)]
    if known == "checkpoint.resume":
        named = [("auto", ""), ("never", ""), *complete_weights(begun)]
        words += [(f"{known}={value}", about) for value, about in named if value.startswith(begun)]
    return words


def complete_changed_key(incomplete: str) -> list[tuple[str, str]]:
    """`complete_key` for an option that takes only keys; `data` means the rows themselves."""
    keys = [("data", "the rows"), *((key.removesuffix("="), about) for key, about in complete_key(incomplete))]
    return [each for each in keys if each[0].startswith(incomplete)]


def _values(kind: Any) -> Iterator[str]:
    """The words that a key may have as its value, as in a recipe; none for numbers and texts, nor null."""
    if kind is bool:
        yield from ("true", "false")
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for each in get_args(kind):
            yield from _values(each)


def _keys(section: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any, str]]:
    """Each key with its type and its explanation."""
    from ascendtune.core.config import sections_in
    from ascendtune.core.field_docstrings import field_docstrings

    explained = field_docstrings(section)
    for name, field in section.model_fields.items():
        inner, is_list = sections_in(field.annotation), get_origin(field.annotation) is list
        if not inner or is_list or any(_values(field.annotation)):
            yield ".".join((*path, name)), field.annotation, explained.get(name, "").partition("\n")[0]
        for each in inner:
            yield from _keys(each, (*path, name, *(("0",) if is_list else ())))
