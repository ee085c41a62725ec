"""`ascendtune align nan`"""

from __future__ import annotations

import os
import sys
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.options import AsJson, LanguageOption
from ascendtune.cli.run_names import complete_run, run_named
from ascendtune.cli.terminal import in_language, print_findings
from ascendtune.core.errors import CheckFailed, NoVerdict

if TYPE_CHECKING:
    from ascendtune.core.errors import CheckFailed
    from ascendtune.core.rundir import RunDir

_LONGEST_SECONDS = 7 * 24 * 3600
_BEFORE_TRAINING = frozenset({"weights-not-finite", "logits-not-finite"})
"""Codes of causes that end a run while its model is loaded."""


def nan(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run whose loss was NaN: its directory, or its name.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    as_json: AsJson = False,
    lang: LanguageOption = None,
) -> int:
    """Name the module that produced the first NaN or infinity of a run, its inputs, and the rows of its batch.

    \b
    ascendtune align nan runs/my-run

    Reads the dump that `on_nan: dump` has written. Without a dump, the run is repeated from its last checkpoint, in the
    directory `replay` of the run, up to the step that failed. Exit code 1: found; 4: every number was finite.
    """
    from ascendtune.check.align.language import say
    from ascendtune.check.align.nan import first_non_finite
    from ascendtune.core.rundir import RunDir

    chosen = in_language(lang, as_json=as_json)
    directory = RunDir.open(run_named(run))
    first = first_non_finite(directory)
    if first is None:
        require_failed(directory)
        first = first_non_finite(_replayed(directory))
    if first is None:
        raise NoVerdict(
            "the repeated steps produced no NaN and no infinite value",
            code="not-reproduced",
            remedy="repeat it on the same kind and number of devices; `ascendtune doctor --deep` finds a faulty device",
            where=run,
        )
    rows = _places(directory, first.rows)
    with chosen:
        finding = first.finding
        print_findings(finding.measured, [finding], as_json=as_json, everything=True, rows=rows)
        if not as_json:
            unnamed = say("the dump does not name the rows of this step")
            print(say("rows of this step: {rows}", rows=", ".join(rows)) if rows else unnamed)
    return 1


def require_failed(run: RunDir) -> None:
    """Raise if repeating `run` cannot show a NaN, because it reached its last step, or did not reach its first one.

    Raises:
        NoVerdict: the run has finished, or its weights or first logits were not finite before any step.
    """
    record = run.read()
    cause = record.get("exit_cause") or {}
    if record.get("state") == "finished":
        raise NoVerdict(
            "the run has finished, and no dump of it contains a NaN or an infinity",
            code="run-finished",
            remedy="to trace steps that `on_nan: skip` left out, train again with on_nan=dump",
            where=run.path,
        )
    if cause.get("code") in _BEFORE_TRAINING:
        raise NoVerdict(
            f"the run failed before its first step: {cause.get('what')}",
            code="no-step-to-repeat",
            remedy=str(cause.get("remedy")),
            where=run.path,
        )


def _replayed(run: RunDir) -> RunDir:
    """Repeat `run` from its last checkpoint to the failure; returns the repetition."""
    from ascendtune.core import log, process
    from ascendtune.core.rundir import RunDir
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.recipe.sections import UNTRACKED

    record, recipe = run.read(), Recipe.load(run.recipe)
    steps = run.checkpoint_steps()
    bad = (run.last_step() or 0) + 1
    attempts = record.get("attempts") or [{}]
    path = run.path.resolve()
    # The same layout as in the run: dropout draws for padding, too.
    pads = not (record.get("resolved") or {}).get("padding_free", False)
    words = [
        *("run_dir=" + str(path / "replay"), "on_nan=dump", f"align.dump_steps={bad}"),
        *((f"align.pad={str(pads).lower()}",) if recipe.data.packing is False else ()),
        f"align.stop_after={bad - 1 + recipe.track.every_steps}",
        f"checkpoint.resume={path / 'checkpoints' / f'step_{steps[-1]}' if steps else 'never'}",
        *(*UNTRACKED, "--devices", str(attempts[-1].get("world_size", 1))),
    ]
    log.say(f"repeating from {f'step {steps[-1]}' if steps else 'the start'} to step {bad}")
    earlier = set(path.glob("replay*/run.json"))
    with chdir(record.get("directory") or "."):
        argv = [sys.executable, "-P", "-m", "ascendtune", "train", str(path / "recipe.yaml"), *words]
        # The working directory comes from a file: Python must not import modules from there.
        env = {**os.environ, "PYTHONSAFEPATH": "1"}
        ended = process.run(argv, timeout_seconds=_LONGEST_SECONDS, env=env)
    replays = [each.parent for each in path.glob("replay*/run.json") if each not in earlier]
    if not replays:
        raise replay_failed(run, {}, ended.exit_code, ended.error)
    replay = RunDir(replays[0])
    cause = replay.read().get("exit_cause") or {}
    if ended.exit_code != 0 and cause.get("code") != "loss-not-finite":
        raise replay_failed(run, cause, ended.exit_code, ended.error)
    return replay


def replay_failed(run: RunDir, cause: dict[str, Any], exit_code: int | None, error: str) -> CheckFailed:
    """The error for a run that could not be repeated.

    Args:
        cause: `exit_cause` of the repetition; empty if it has none.
        error: stderr of the repetition.
    """
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    message = lines[0].removeprefix("error: ") if lines else f"exit code {exit_code}"
    return CheckFailed(
        f"the run could not be repeated: {cause.get('what') or message}",
        code="replay-failed",
        remedy=cause.get("remedy") or "resume the run with on_nan=dump",
        where=run.path,
    )


def _places(run: RunDir, rows: tuple[int, ...]) -> list[str]:
    """`file:line` of the rows if known, else their numbers."""
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.prepare import places_of_rows

    recipe = Recipe.load(run.recipe)
    with chdir(run.read().get("directory") or "."):
        return places_of_rows(recipe, run, rows)
