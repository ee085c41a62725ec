"""`ascendtune plan --measure`: two real steps of full rows on this machine's devices."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascendtune.core.errors import CheckFailed, InputError
from ascendtune.core.terminal_text import safe
from ascendtune.core.units import format_bytes

if TYPE_CHECKING:
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.plan.history import PastRun
    from ascendtune.train.plan.measured import MeasuredRun
    from ascendtune.train.plan.request import Target


def require_this_machine(device: str | None, memory: str | None, nodes: int) -> None:
    """Raise unless the plan is for devices of this machine.

    Raises:
        InputError: an option describes others.
    """
    if device or memory or nodes > 1:
        raise InputError(
            "--measure trains on the devices of this machine; --device, --memory and --nodes describe others",
            code="conflicting-options",
            remedy="leave out --measure, or the other option",
        )


def measure(
    path: Path, overrides: list[str], recipe: Recipe, target: Target, history: Sequence[PastRun]
) -> tuple[MeasuredRun, PastRun | None]:
    """Train two steps of full rows; returns predictions and measurements, also as a past run.

    Args:
        recipe: the recipe at `path`, with a number for `batch.per_device: auto`.

    Raises:
        CheckFailed: they could not be trained; the training has printed the reason.
    """
    from ascendtune.cli.child_training import train_briefly
    from ascendtune.core.rundir import RunDir
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.plan.device_table import known_name
    from ascendtune.train.plan.estimator import cached_dataset, run_estimator
    from ascendtune.train.plan.history import safe_name
    from ascendtune.train.plan.measured import as_past_run, keys_of_measurement, read_measured, write_full_rows
    from ascendtune.train.plan.time_estimate import expected_step_seconds

    with tempfile.TemporaryDirectory(prefix="ascendtune-plan-") as scratch:
        rows = Path(scratch) / "rows.jsonl"
        write_full_rows(rows, recipe)
        keys = [*overrides, *keys_of_measurement(recipe, rows, f"{recipe.name}-measure")]
        code, run = train_briefly(path, keys, devices=target.devices)
        if code or run is None:
            raise CheckFailed(
                "the steps to measure could not be trained",
                code="measurement-failed",
                remedy="look at the error above; without --measure the estimate is shown",
                where=run,
            )
        # Predicted for the same rows that were trained on, while their file exists.
        measured_recipe = Recipe.load(path, keys)
        answer = run_estimator(measured_recipe, target, dataset=cached_dataset(measured_recipe), search=False)
    seconds = expected_step_seconds(answer, target, history)
    measured = read_measured(RunDir(run), answer, seconds, target)
    return measured, as_past_run(measured, answer, target, safe_name(known_name(target.name)))


def measured_lines(found: MeasuredRun) -> list[str]:
    """Text for people: predicted and measured."""
    from ascendtune.cli.plan_time import seconds_text

    lines = [f"measured: two steps of full rows, {safe(found.run)}"]
    predicted = format_bytes(found.predicted_bytes)
    if found.measured_bytes is None:
        lines.append(
            f"  memory: {predicted} predicted; not compared: on a CPU the measured memory includes the interpreter"
        )
    else:
        change = found.measured_bytes / found.predicted_bytes - 1
        lines.append(f"  memory: {predicted} predicted, {format_bytes(found.measured_bytes)} measured ({change:+.1%})")
    actual = seconds_text(found.measured_seconds)
    if found.predicted_seconds is None:
        lines.append(f"  a step: {actual} measured, there was no prediction")
    else:
        change = found.measured_seconds / found.predicted_seconds - 1
        lines.append(f"  a step: {seconds_text(found.predicted_seconds)} predicted, {actual} measured ({change:+.1%})")
    what = "the time above is" if found.measured_bytes is None else "memory and time above are"
    return [*lines, f"  {what} corrected by this"]
