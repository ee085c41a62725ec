"""Names of runs and recipe keys on the command line: what they stand for, and how the shell completes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir

_RUNS = Path("runs")
_PLAIN = re.compile(r"[\w.-]+")
"""What a recipe's `name` may be, and a state. The shell puts what it completes unquoted into the line that it runs."""


def run_named(text: str | Path) -> str:
    """The directory of the run that `runs list` or `jobs list` shows under this name; any other text as it is.

    A path that exists stands for itself; then a run below `runs/` of the working directory, then the run of a job.
    """
    name = str(text)
    if Path(name).exists() or "/" in name or name in ("", "-"):
        return name
    found = [run for run in _runs() if run.path.name == name]
    if len(found) == 1:
        return str(found[0])
    return _run_of_job(name) or name


def _run_of_job(name: str) -> str | None:
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.registry import jobs

    fitting = [job for job in jobs() if name in (job.id, job.name)]
    newest = RunDir(fitting[-1].run_dir) if fitting else None
    return str(newest) if newest is not None and newest.run_json.is_file() else None


def _runs() -> list[RunDir]:
    from ascendtune.cli.runs import find_runs

    return find_runs(_RUNS) if _RUNS.is_dir() else []


def complete_run(incomplete: str) -> list[tuple[str, str]]:
    """Names of runs that begin so, the newest first, each with its state; no name that a shell would interpret."""
    from ascendtune.cli.runs import state_of
    from ascendtune.core.errors import AscendtuneError

    shown = []
    for run in reversed([run for run in _runs() if run.path.name.startswith(incomplete)]):
        # A shell that completes shows no warnings.
        with suppress(AscendtuneError, OSError):
            shown.append((run.path.name, state_of(run.read())))
    return [each for each in shown if all(map(_PLAIN.fullmatch, each))]


def complete_key(incomplete: str) -> list[tuple[str, str]]:
    """Recipe keys that begin so, as `optim.learning_rate=`, each with its explanation."""
    from ascendtune.recipe.recipe import Recipe

    return [(f"{key}=", about) for key, about in _keys(Recipe, ()) if f"{key}=".startswith(incomplete)]


def _keys(section: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    from ascendtune.core.config import sections_in

    for name, field in section.model_fields.items():
        inner = sections_in(field.annotation)
        if inner:
            for each in inner:
                yield from _keys(each, (*path, name))
        else:
            yield ".".join((*path, name)), (field.description or "").partition("\n")[0]
