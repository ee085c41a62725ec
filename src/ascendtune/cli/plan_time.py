"""The output of `ascendtune plan` about time, and about past runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ascendtune.cli.terminal import PLAIN_COLUMNS, table, width
from ascendtune.core.errors import InputError
from ascendtune.core.terminal_text import wrap_words
from ascendtune.core.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from ascendtune.train.plan.history import PastRun, PredictionErrors
    from ascendtune.train.plan.time_estimate import TimeEstimate, TimeRange

_GIGA = 1e9


def rate_of(option: str, value: float | None, unit: float = _GIGA) -> float | None:
    """The value of an option in base units.

    Raises:
        InputError: not a number above 0.
    """
    if value is not None and not 0 < value < math.inf:
        raise InputError(
            f"{option} {value:g} is not a speed", code="invalid-option-value", remedy="give a number above 0"
        )
    return None if value is None else value * unit


def time_lines(found: TimeEstimate) -> list[str]:
    """Lines on the time of the whole run, and of a step."""
    lines = [f"a step: {_range(found.step_seconds)}, {found.tokens_per_second:,.0f} tokens/s, from {found.basis}"]
    parts = found.parts
    if "update" in parts:
        spent = [f"computation {seconds_text(parts['compute'])}", f"update {seconds_text(parts['update'])}"]
        if "communication" in parts:
            spent.append(
                f"communication {seconds_text(parts['communication'])}, "
                f"of which {seconds_text(parts['exposed'])} is not hidden"
            )
        if "host_update" in parts:
            spent.append(
                f"offloading: copies {seconds_text(parts['host_copies'])}, of which "
                f"{seconds_text(parts['exposed_host_copies'])} is not hidden, update on the host "
                f"{seconds_text(parts['host_update'])}"
            )
        lines.append(f"  {', '.join(spent)}")
    if found.mfu is not None:
        lines.append(f"  model FLOPs utilisation (MFU): {found.mfu:.1%}")
    if found.steps is not None and found.seconds is not None and found.tokens is not None:
        low, high = format_duration(found.seconds.low), format_duration(found.seconds.high)
        lines.append(
            f"the run: {found.steps:,} steps, {format_count(found.tokens)} tokens, "
            f"{format_duration(found.seconds.expected)} ({low} to {high}), without loading, evaluation and checkpoints"
        )
    else:
        lines.append(
            "the run: the number of steps is not known; prepare the data with `ascendtune train RECIPE --prepare`, or "
            "set optim.max_steps"
        )
    if found.energy_joules is not None:
        lines.append(f"energy: at most {found.energy_joules / 3.6e6:.3g} kWh, the limit of the devices without hosts")
    lines.append(f"disk: up to {format_bytes(found.disk_bytes)} for checkpoints and model")
    return lines


_SPARE = ("precision", "ranks", "method", "peak")
"""Columns that a narrow terminal omits, in this order; --json has all."""
_SHOWN_RUNS = 20


def history_text(runs: Sequence[PastRun]) -> str:
    """Past runs, newest first, one table per device, with the errors of predictions."""
    from ascendtune.train.plan.history import errors_of

    if not runs:
        return "no run has been recorded yet: `ascendtune train` adds each run of three recorded steps or more"
    rows: dict[str, list[list[str]]] = {}
    for each in reversed(runs[-_SHOWN_RUNS:]):
        rows.setdefault(each.device, []).append(
            [
                f"{each.features.model_type} {format_count(each.features.parameters)}",
                f"{each.features.stage} {each.features.tuner}", each.features.precision,
                f"{each.features.ranks} × {each.features.strategy}", seconds_text(each.step_seconds),
                _error_text(each.predicted_seconds, each.step_seconds),
                format_bytes(each.peak_bytes) if each.peak_bytes else "-",
                _error_text(each.predicted_bytes, each.peak_bytes),
            ]
        )  # fmt: skip
    heads = ["model", "method", "precision", "ranks", "step", "error", "peak", "peak error"]
    columns = width(sys.stdout) or PLAIN_COLUMNS
    lines = []
    for device, of_device in rows.items():
        shown = table(heads, of_device, right=["step", "error", "peak", "peak error"], spare=_SPARE)
        lines += [*wrap_words(f"{device}:", columns), shown, ""]
    time = errors_of([(each.predicted_seconds, each.step_seconds) for each in runs])
    memory = errors_of([(each.predicted_bytes, each.peak_bytes) for each in runs])
    for what, errors in (("step time", time), ("memory", memory)):
        lines += wrap_words(f"{what}: {_errors_in_words(errors)}", columns, "", "  ")
    return "\n".join(lines)


def _errors_in_words(errors: PredictionErrors | None) -> str:
    if errors is None:
        return "no prediction to compare yet"
    return (
        f"{errors.runs} predicted, |error| median {errors.median:.1%}, worst {errors.worst:.1%}, "
        f"lowest {errors.low:+.1%}"
    )


def _error_text(predicted: float | None, measured: float | None) -> str:
    return f"{predicted / measured - 1:+.1%}" if predicted and measured else "-"


def _range(found: TimeRange) -> str:
    return f"{seconds_text(found.expected)} expected ({seconds_text(found.low)} to {seconds_text(found.high)})"


def seconds_text(value: float) -> str:
    """With three digits: `1.2 s`, `412 ms`."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
