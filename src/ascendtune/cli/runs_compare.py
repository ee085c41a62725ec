"""`ascendtune runs compare`"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ascendtune.core.rundir import RunDir

_STEPS_SHOWN = 12
_REWARDS = ("accuracy", "margin")
"""What is compared beside the loss, where all runs record it."""


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run directories.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every step.")] = False,
) -> None:
    """Compare runs: losses side by side, and what differs in recipe and data.

    Runs that learn from preferences are compared by their rewards too: how often the right answer is ahead, how far.

    \b
    ascendtune runs compare runs/a runs/b
    """
    from ascendtune.core.errors import InputError
    from ascendtune.core.rundir import RunDir

    if len(runs) < 2:
        raise InputError("one run cannot be compared", remedy="give two or more run directories")
    compared = _compare([RunDir.open(path) for path in runs])
    print(json.dumps(compared, indent=2, ensure_ascii=False) if as_json else "\n".join(_lines(compared)))


def _compare(runs: Sequence[RunDir]) -> dict[str, Any]:
    metrics = [{record["step"]: record for record in run.read_metrics()} for run in runs]
    data = [run.read().get("data_hash") for run in runs]
    return {
        "runs": [str(run) for run in runs],
        "recipe": _differences(runs),
        "data_hash": data,
        "same_data": len(set(data)) == 1 if all(data) else None,
        "first_different_batch": _first_different_batch(metrics),
        "loss": _curves(metrics, "loss"),
        **{name: _curves(metrics, name) for name in _REWARDS if all(_has(each, name) for each in metrics)},
    }


def _has(metrics: dict[int, dict[str, Any]], name: str) -> bool:
    return any(name in record for record in metrics.values())


def _curves(metrics: list[dict[int, dict[str, Any]]], name: str) -> dict[int, list[float | None]]:
    """Step -> the value in each run; None where a run has not recorded the step, or it was not a number."""
    steps = sorted({step for each in metrics for step in each})
    return {step: [each.get(step, {}).get(name) for each in metrics] for step in steps}


def _first_different_batch(metrics: list[dict[int, dict[str, Any]]]) -> int | None:
    """The first step, recorded by all, at which the runs saw different rows."""
    common = sorted(set.intersection(*map(set, metrics)))
    hashes = ((step, {each[step].get("batch_hash") for each in metrics}) for step in common)
    return next((step for step, found in hashes if len(found - {None}) > 1), None)


def _differences(runs: Sequence[RunDir]) -> dict[str, list[Any]] | None:
    """Key -> the value in each run, where they differ; None where the recipe of a run cannot be known."""
    from ascendtune.cli.run_summary import unless_damaged
    from ascendtune.core.document import read_document

    recipes = [unless_damaged(partial(read_document, run.recipe)) for run in runs]
    known = [_flat(recipe.values) for recipe in recipes if recipe is not None]
    if len(known) < len(recipes):
        return None
    keys = dict.fromkeys(key for recipe in known for key in recipe)
    values = {key: [recipe.get(key) for recipe in known] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """`{"data.train.0.path": …}`: a value for every leaf, however deep in sections and lists."""
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    leaves = {
        path: leaf
        for key, value in inner
        for path, leaf in _flat(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }
    return leaves or {prefix: values}


def _lines(compared: dict[str, Any]) -> list[str]:
    from ascendtune.cli.terminal import table

    names = _short_names(compared["runs"])
    lines = []
    if compared["recipe"]:
        rows = [[key, *map(str, values)] for key, values in compared["recipe"].items()]
        lines += [table(["recipe", *names], rows), ""]
    else:
        lines += ["recipe: unknown" if compared["recipe"] is None else "recipe: the same", ""]
    same = {True: "the same", False: "different", None: "unknown"}[compared["same_data"]]
    step = compared["first_different_batch"]
    lines += [f"data: {same}" + (f"; the batches differ from step {step} on" if step is not None else ""), ""]
    if not compared["loss"]:
        return [*lines, "no step is recorded yet"]
    lines.append(_table_of(compared["loss"], "step", names))
    for name in _REWARDS:
        if name in compared:
            lines += ["", _table_of(compared[name], name, names)]
    return lines


def _table_of(curves: dict[int, list[float | None]], title: str, names: list[str]) -> str:
    from ascendtune.cli.terminal import table

    steps = list(curves.items())
    shown = steps if len(steps) <= _STEPS_SHOWN else _spread(steps, _STEPS_SHOWN)
    rows = [[str(step), *("-" if value is None else f"{value:.6f}" for value in values)] for step, values in shown]
    return table([title, *names], rows, right=[title, *names])


def _short_names(paths: list[str]) -> list[str]:
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(names) else paths


def _spread(items: list[Any], count: int) -> list[Any]:
    """`count` of the items, evenly, with the first and the last."""
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]
