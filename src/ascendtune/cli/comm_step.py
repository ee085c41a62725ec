"""`ascendtune comm bench --profile-step`: where the time of a training step goes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ascendtune.check.comm import step
from ascendtune.check.comm.start import Ranks
from ascendtune.check.comm.step import Step
from ascendtune.check.comm.trouble import trouble
from ascendtune.check.finding import exit_code
from ascendtune.check.table import as_json as findings_as_json
from ascendtune.check.table import as_text
from ascendtune.cli.comm_ranks import place_for, run
from ascendtune.cli.complain import warn
from ascendtune.cli.progress import Progress
from ascendtune.cli.terminal import paint, table, width
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.prepare import prepare_run

_FAR = 1000
"""A step that is never reached: nothing is evaluated, kept or exported."""


def measure_step(source: Path, ranks: Ranks, directory: Path | None, timeout: float, *, as_json: bool) -> int:
    """Train a few steps of a recipe, or of a run's; print, and return the exit code.

    Raises:
        RecipeError, DataError: the recipe, the model or the data are not right.
        MachineError: nothing can be written.
    """
    with TemporaryDirectory(prefix="ascendtune-step-", dir=place_for(ranks)) as scratch:
        prepared = _prepared(RunDir.open(source).recipe if source.is_dir() else source, Path(scratch) / "run")
        ran = run({"run": str(prepared.path), "timeout_seconds": timeout}, ranks, directory, steps=step.STEPS)
    steps = step.steps_of(ran)
    findings = [] if ran.is_whole else [trouble(ran, timeout)]
    sentence = "no step was measured"
    if steps:
        sentence = step.sentence(steps, f"{ranks.count} ranks over {ran.backend}")
        findings.append(step.waiting(steps, ranks))
    if as_json:
        told = [each.as_json() for each in steps]
        print(findings_as_json(sentence, findings, ranks=ranks.count, kind=ranks.kind, steps=told))
    else:
        if steps:
            print(_table(steps), end="\n\n")
        print(as_text(sentence, findings, columns=width(sys.stdout), paint=paint))
    return exit_code(findings)


def _prepared(recipe: Path, run_directory: Path) -> RunDir:
    overrides = [
        f"run_dir={run_directory}",
        f"optim.max_steps={_FAR}",
        f"checkpoint.every_steps={_FAR}",
        "checkpoint.resume=never",
        "track.tensorboard=false",
    ]
    data = Recipe.load(recipe, overrides).data
    if data.eval or data.eval_fraction or data.eval_rows:
        overrides.append(f"eval.every_steps={_FAR}")
    loaded, origins = Recipe.load_with_origins(recipe, overrides)
    with Progress(sys.stderr) as progress:
        ready = prepare_run(loaded, origins, progress=progress.show)
    for message in (*loaded.notes, *ready.prepared.warnings):
        warn(message)
    assert ready.run is not None, "not only the data was asked for"
    return ready.run


def _table(steps: Sequence[Step]) -> str:
    header = ["rank", "step, ms", "compute", "communication", "waiting"]
    rows = [
        [str(each.rank), f"{each.apart_seconds * 1e3:.1f}", *(f"{each.share(part):.0%}" for part in header[2:])]
        for each in steps
    ]
    return table(header, rows, right=header)
