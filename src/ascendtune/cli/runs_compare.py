"""`ascendtune runs compare`"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.run_names import complete_run, run_named
from ascendtune.cli.terminal import print_json, table, width
from ascendtune.core.errors import InputError
from ascendtune.core.foreign_json import is_number
from ascendtune.core.terminal_text import wrapped
from ascendtune.core.units import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ascendtune.core.rundir import RunDir

_STEPS_SHOWN = 12
_REWARDS = ("accuracy", "margin")
"""Metrics compared besides the loss, if all runs record them."""
_OF_TOKENS = {"pretrain", "sft"}
"""Kinds of loss that are means over labelled tokens; the others are means over pairs or answers."""


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Two or more runs: directories or names.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with every step.")] = False,
) -> None:
    """Compare runs: losses side by side, and differences in recipe and data.

    \b
    ascendtune runs compare runs/a runs/b

    Evaluation losses are compared if two or more runs have them, rewards if all runs train on preferences.
    """
    from ascendtune.core.rundir import RunDir

    if len(runs) < 2:
        raise InputError("one run cannot be compared", code="too-few-runs", remedy="give two or more run directories")
    compared = _compare([RunDir.open(run_named(path)) for path in runs])
    # JSON has no NaN.
    print_json(_without_nan(compared)) if as_json else print("\n".join(_lines(compared)))


def _compare(runs: Sequence[RunDir]) -> dict[str, Any]:
    from ascendtune.recipe.changes import kind_of_loss

    metrics = [_of_steps(run.read_metrics()) for run in runs]
    evaluations = [_evaluations(run) for run in runs]
    recipes = _recipes(runs)
    kinds = None if recipes is None else [kind_of_loss(recipe) for recipe in recipes]
    rewards = [name for name in _REWARDS if all(any(name in each for each in run.values()) for run in metrics)]
    means = {name: _means(metrics, name, by_tokens=_OF_TOKENS.issuperset(kinds or ())) for name in ("loss", *rewards)}
    if means["loss"] and "preference, kto" in (kinds or ()):
        # A difference of two means, over answers that a record does not count.
        means.pop("margin", None)
    data = [run.read().get("data_hash") for run in runs]
    comparison = {
        "runs": [str(run) for run in runs],
        "recipe": None if recipes is None else _differences(recipes),
        "data_hash": data,
        "same_data": len(set(data)) == 1 if all(data) else None,
        "first_common_step": min(set.intersection(*map(set, metrics)), default=None),
        "first_different_batch": _first_different_batch(metrics),
        "loss_kinds": kinds,
        "loss": _curves(metrics, "loss"),
        "steps_without_number": [_steps_without_number(each) for each in metrics],
    }
    comparison |= {name: _curves(metrics, name) for name in rewards if name in means}
    comparison |= {f"mean_{name}": values for name, values in means.items() if values}
    if sum(map(bool, evaluations)) > 1:
        comparison |= {"evaluation_loss": _curves(evaluations, "loss"), "same_evaluation_data": _same_rows(evaluations)}
    return comparison


def _evaluations(run: RunDir) -> dict[int, dict[str, Any]]:
    from ascendtune.cli.runs import unless_damaged

    return _of_steps(unless_damaged(lambda: list(run.read_evaluations())) or [])


def _of_steps(records: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Step -> its record; records without a step are ignored."""
    return {record["step"]: record for record in records if type(record.get("step")) is int}


def _curves(metrics: list[dict[int, dict[str, Any]]], name: str) -> dict[int, list[float | None]]:
    """Step -> the value in each run; NaN if it was not finite, None if the run did not record it."""
    steps = sorted({step for each in metrics for step in each})
    return {step: [_value(each.get(step, {}), name) for each in metrics] for step in steps}


def _means(metrics: list[dict[int, dict[str, Any]]], name: str, *, by_tokens: bool) -> dict[int, list[float | None]]:
    """Step -> the mean in each run since the previous step, for the steps that all runs recorded.

    A record is a mean since the last one: that of one step and that of ten are not comparable. Empty if the runs
    recorded the same steps.
    """
    common = sorted(set.intersection(*map(set, metrics)))
    if not common:
        return {}
    begin = min(_begin(each, common[0]) for each in metrics)
    kept = [{step: each[step] for step in sorted(each) if begin < step <= common[-1]} for each in metrics]
    if all(len(each) == len(common) for each in kept):
        return {}
    means = [_run_means(each, set(common), begin, name, by_tokens=by_tokens) for each in kept]
    return {step: [each[step] for each in means] for step in common}


def _begin(records: dict[int, dict[str, Any]], first: int) -> int:
    """The step before those that the record of step `first` covers."""
    steps, tokens = sorted(records), records[first].get("tokens")
    if at := steps.index(first):
        return steps[at - 1]
    if len(steps) == 1 or (tokens is not None and tokens == records[first].get("tokens_seen")):
        return 0
    return max(0, first - (steps[1] - first))


def _run_means(
    records: dict[int, dict[str, Any]], ends: set[int], begin: int, name: str, *, by_tokens: bool
) -> dict[int, float | None]:
    means, window, before = dict[int, float | None](), list[tuple[float | None, float]](), begin
    for step, record in records.items():
        units = record.get("labelled_tokens" if by_tokens else "groups")
        window.append((_value(record, name), units if isinstance(units, int) and units > 0 else step - before))
        before = step
        if step in ends:
            means[step] = _mean(window)
            window = []
    return means


def _mean(window: list[tuple[float | None, float]]) -> float | None:
    """Weighted mean of values; NaN and missing ones do not count unless there are no others."""
    numbers = [(value, weight) for value, weight in window if value is not None and not math.isnan(value)]
    if len(window) == 1 or not numbers:
        return window[-1][0]
    return sum(value * weight for value, weight in numbers) / sum(weight for _, weight in numbers)


def _same_rows(evaluations: list[dict[int, dict[str, Any]]]) -> bool | None:
    """Whether all evaluations are of the same rows; None if it is not recorded."""
    hashes = {record.get("data_hash") for each in evaluations for record in each.values()}
    return None if None in hashes else len(hashes) == 1


def _value(record: dict[str, Any], name: str) -> float | None:
    # A record has null in place of NaN and infinities.
    if name not in record:
        return None
    value = record[name]
    return float(value) if is_number(value) else math.nan


def _steps_without_number(metrics: dict[int, dict[str, Any]]) -> list[int]:
    """Steps whose loss was NaN or infinite."""
    return sorted(step for step, record in metrics.items() if math.isnan(_value(record, "loss") or 0.0))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _first_different_batch(metrics: list[dict[int, dict[str, Any]]]) -> int | None:
    """The first step recorded by all runs at which their rows differ."""
    common = sorted(set.intersection(*map(set, metrics)))
    hashes = ((step, {each[step].get("batch_hash") for each in metrics}) for step in common)
    return next((step for step, found in hashes if len(found - {None}) > 1), None)


def _recipes(runs: Sequence[RunDir]) -> list[dict[str, Any]] | None:
    """The keys of each recipe; None if the recipe of a run is damaged."""
    from ascendtune.cli.runs import unless_damaged
    from ascendtune.core.document import read_document

    recipes = [unless_damaged(partial(read_document, run.recipe)) for run in runs]
    known = [_flat(recipe.values) for recipe in recipes if recipe is not None]
    return known if len(known) == len(recipes) else None


def _differences(recipes: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Key -> the value in each run, where they differ."""
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    values = {key: [recipe.get(key) for recipe in recipes] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """`{"data.train.0.path": …}`: a value for every leaf, at any depth of sections and lists."""
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    leaves = {
        path: leaf
        for key, value in inner
        for path, leaf in _flat(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }
    return leaves or {prefix: values}


def _lines(compared: dict[str, Any]) -> list[str]:
    from ascendtune.cli.runs import plain

    names = _short_names(compared["runs"])
    lines = []
    if compared["recipe"]:
        rows = [[key, *map(plain, values)] for key, values in compared["recipe"].items()]
        lines += [table(["recipe", *names], rows), ""]
    else:
        lines += ["recipe: unknown" if compared["recipe"] is None else "recipe: the same", ""]
    same = {True: "the same", False: "different", None: "unknown"}[compared["same_data"]]
    lines += [_folded(f"data: {same}{_batches(compared)}"), ""]
    if not compared["loss"]:
        return [*lines, "no steps are recorded yet"]
    kinds = compared["loss_kinds"] or []
    if len(set(kinds)) > 1:
        named = "; ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
        lines += [_folded(f"the losses are of different kinds and not comparable: {named}"), ""]
    if "mean_loss" in compared:
        mean = "the runs did not record the same steps: a value is the mean since the step above it"
        lines += [_folded(mean), ""]
    lines.append(_table_of(compared, "loss", "step", names))
    lines += [
        _folded(f"{name}: the loss of {count_of(len(steps), 'step')} is not a number, first at step {steps[0]}")
        for name, steps in zip(names, compared["steps_without_number"], strict=True)
        if steps
    ]
    for name in (*_REWARDS, "evaluation_loss"):
        if name in compared:
            lines += ["", _table_of(compared, name, name.replace("_", " "), names)]
    if compared.get("same_evaluation_data") is False:
        lines.append(_folded("the evaluations are of different rows, and not comparable"))
    return lines


def _folded(sentence: str) -> str:
    return wrapped(sentence, width(sys.stdout), indent=2)


def _batches(compared: dict[str, Any]) -> str:
    step = compared["first_different_batch"]
    if step is None:
        return ""
    if step == compared["first_common_step"] and step > 1:
        return f"; the batches differ at step {step}, the first that all runs recorded"
    return f"; the batches differ from step {step} on"


def _table_of(compared: dict[str, Any], name: str, title: str, names: list[str]) -> str:
    """The steps recorded by all runs, or else all steps; below them the last record of each run and its step."""
    curves: dict[int, list[float | None]] = compared[name]
    means: dict[int, list[float | None]] = compared.get(f"mean_{name}", curves)
    steps = [(step, values) for step, values in means.items() if None not in values] or list(curves.items())
    shown = steps if len(steps) <= _STEPS_SHOWN else _spread(steps, _STEPS_SHOWN)
    rows = [[str(step), *map(_figure, values)] for step, values in shown]
    last = [_last(curves, index) for index in range(len(names))]
    if {step for step, _ in last} != {shown[-1][0]}:
        rows.append(["last", *map(_figure, (value for _, value in last))])
        rows.append(["at step", *("-" if step is None else str(step) for step, _ in last)])
    return table([title, *names], rows, right=[title, *names])


def _last(curves: dict[int, list[float | None]], index: int) -> tuple[int | None, float | None]:
    recorded = ((step, values[index]) for step, values in reversed(curves.items()) if values[index] is not None)
    return next(recorded, (None, None))


def _figure(value: float | None) -> str:
    return "-" if value is None else "NaN" if math.isnan(value) else f"{value:.6f}"


def _short_names(paths: list[str]) -> list[str]:
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(names) else paths


def _spread(items: list[Any], count: int) -> list[Any]:
    """`count` of the items, evenly spaced, including the first and the last."""
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]
