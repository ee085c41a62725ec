"""`ascendtune align nan`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir

_LONGEST_SECONDS = 7 * 24 * 3600


def nan(
    run: Annotated[Path, typer.Argument(help="Directory of a run whose loss was NaN.", show_default=False)],
) -> int:
    """Name the module that made the first NaN or infinity of a run, what went into it, and the rows of its batch.

    \b
    ascendtune align nan runs/my-run

    Reads the dump that `on_nan: dump` has written. Where there is none, the run is repeated from its last checkpoint,
    in the directory `replay` of the run, up to the step that failed. Exit code 1: found; 4: every number was finite.
    """
    import sys

    from ascendtune.check.align.nan import first_bad
    from ascendtune.check.table import as_text
    from ascendtune.cli.terminal import paint, width
    from ascendtune.core.errors import NoVerdict
    from ascendtune.core.rundir import RunDir

    directory = RunDir.open(run)
    found = first_bad(directory)
    if found is None:
        found = first_bad(_replayed(directory))
    if found is None:
        raise NoVerdict(
            "the repeated steps produced no NaN and no infinite value",
            code="not-reproduced",
            remedy="repeat it on the same kind and number of devices; `ascendtune doctor --deep` finds a faulty device",
            where=run,
        )
    finding = found.finding
    rows = _places(directory, found.rows)
    print(as_text(finding.measured, [finding], columns=width(sys.stdout), paint=paint, everything=True))
    print(f"rows of this step: {', '.join(rows)}" if rows else "the dump does not name the rows of this step")
    return 1


def _replayed(run: RunDir) -> RunDir:
    """A run that has repeated `run` from its last checkpoint to where it failed."""
    import os
    import sys
    from contextlib import chdir

    from ascendtune.core import log, process
    from ascendtune.core.errors import CheckFailed
    from ascendtune.core.rundir import RunDir
    from ascendtune.recipe.recipe import Recipe

    record, recipe = run.read(), Recipe.load(run.recipe)
    steps = run.checkpoint_steps()
    bad = (run.last_step() or 0) + 1
    attempts = record.get("attempts") or [{}]
    path = run.path.resolve()
    words = [
        *("run_dir=" + str(path / "replay"), "on_nan=dump", f"align.dump_steps={bad}"),
        f"align.stop_after={bad - 1 + recipe.track.every_steps}",
        f"checkpoint.resume={path / 'checkpoints' / f'step_{steps[-1]}' if steps else 'never'}",
        *("track.tensorboard=false", "--devices", str(attempts[-1].get("world_size", 1))),
        *(("--trust-checkpoint",) if steps else ()),
    ]
    log.say(f"repeating from {f'step {steps[-1]}' if steps else 'the start'} to step {bad}")
    with chdir(record.get("directory") or "."):
        argv = [sys.executable, "-m", "ascendtune", "train", str(path / "recipe.yaml"), *words]
        # The working directory is read from a file: Python must not import modules from there.
        env = {**os.environ, "PYTHONSAFEPATH": "1"}
        ended = process.run(argv, timeout_seconds=_LONGEST_SECONDS, env=env)
    replays = sorted(path.glob("replay*/run.json"), key=lambda each: each.stat().st_mtime)
    if not replays or ended.exit_code not in (0, 1):
        lines = [line for line in ended.error.splitlines() if line.strip()]
        raise CheckFailed(
            f"the run could not be repeated: {lines[-1] if lines else f'exit code {ended.exit_code}'}",
            code="replay-failed",
            remedy="resume the run with on_nan=dump",
            where=run.path,
        )
    return RunDir(replays[-1].parent)


def _places(run: RunDir, rows: tuple[int, ...]) -> list[str]:
    """`file:line` of the rows, where it is known; else their numbers."""
    from contextlib import chdir

    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.prepare import places_of_rows

    recipe = Recipe.load(run.recipe)
    with chdir(run.read().get("directory") or "."):
        return places_of_rows(recipe, run, rows)
