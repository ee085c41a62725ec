"""`ascendtune plan`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.messages import warn
from ascendtune.cli.options import MOST_PROCESSES, AsJson, Overrides
from ascendtune.cli.terminal import print_json, table, width
from ascendtune.core.errors import InputError
from ascendtune.core.terminal_text import wrapped
from ascendtune.core.units import count_of, format_bytes, format_count

if TYPE_CHECKING:
    from ascendtune.train.plan.estimator import EstimatorResult
    from ascendtune.train.plan.history import PastRun
    from ascendtune.train.plan.measured import MeasuredRun
    from ascendtune.train.plan.request import Target
    from ascendtune.train.plan.time_estimate import TimeEstimate

_TITLES = {
    "weights": "weights",
    "adapters": "adapters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "communication": "gathered weights, communication buffers",
    "activations": "activations",
    "loss": "logits and loss",
    "backward": "backward pass, in passing",
    "reference": "reference model",
}


def _complete_device(incomplete: str) -> list[str]:
    from ascendtune.train.plan.device_table import table

    return sorted(name for entry in table().values() for name in entry["names"] if name.startswith(incomplete))


def plan(
    recipe: Annotated[
        Path | None, typer.Argument(help="The recipe, in native or LLaMA-Factory form.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Plan for this device, e.g. 910b3, 910b4, a3, h200, a100-80g.",
            autocompletion=_complete_device,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of one device, e.g. 64GiB."),
    ] = None,
    devices: Annotated[int, typer.Option(metavar="N", min=1, max=MOST_PROCESSES, help="Devices of each node.")] = 1,
    nodes: Annotated[int, typer.Option(metavar="M", min=1, max=MOST_PROCESSES, help="Number of nodes.")] = 1,
    tflops: Annotated[
        float | None, typer.Option(metavar="N", help="Dense peak of a device in TFLOP/s, if the table has none.")
    ] = None,
    link: Annotated[
        float | None, typer.Option(metavar="GB/S", help="From a device to the others of its node, one direction.")
    ] = None,
    network: Annotated[
        float | None, typer.Option(metavar="GB/S", help="From a device to other nodes, one direction.")
    ] = None,
    measured: Annotated[
        bool, typer.Option("--measure", help="Train two steps of full rows here, and use them to correct the estimate.")
    ] = False,
    past: Annotated[
        bool, typer.Option("--history", help="Show past runs and the errors of predictions; needs no recipe.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate a recipe's memory and time, and find changes that make it fit.

    \b
    ascendtune plan recipe.yaml
    ascendtune plan recipe.yaml --device 910b3 --devices 8
    ascendtune plan recipe.yaml method.tuner=lora --memory 32GiB
    ascendtune plan recipe.yaml --measure
    ascendtune plan --history

    Needs config.json, but neither weights nor the device: one training step is traced with fake tensors, which have
    shapes but no data. If the data are prepared, their rows are used. --measure needs both. Exit code 1: it does not
    fit.
    """
    from ascendtune.cli.plan_measure import measure, require_this_machine
    from ascendtune.cli.plan_time import history_text, rate_of
    from ascendtune.core import log
    from ascendtune.core.progress_bar import ProgressBar
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.plan.estimator import cached_dataset, run_estimator
    from ascendtune.train.plan.history import read_history
    from ascendtune.train.plan.measured import corrected

    log.set_up()
    history = read_history()
    if past:
        print_json([asdict(each) for each in history]) if as_json else print(history_text(history))
        return
    if recipe is None:
        raise InputError("no recipe was given", code="recipe-missing", remedy="name one, or add --history")
    if measured:
        require_this_machine(device, memory, nodes)
    # Checked before the step is traced, which takes seconds.
    rates = rate_of("--tflops", tflops, 1e12), rate_of("--link", link), rate_of("--network", network)
    loaded = Recipe.load(recipe, overrides or [])
    target = _target(device, memory, devices, nodes)
    with ProgressBar(sys.stderr) as progress, progress.counting("tracing a step"):
        answer = run_estimator(loaded, target, dataset=cached_dataset(loaded))
    measurement = None
    if measured:
        measurement, as_past = measure(recipe, overrides or [], answer.recipe, target, history)
        answer = replace(answer, estimate=corrected(answer.estimate, measurement.memory_factor))
        history = [as_past] if as_past else history
    time = _time(answer, target, history, *rates)
    if measurement and not isinstance(time, str):
        time = replace(time, basis="the steps that were measured")
    fits = answer.estimate.fits(target.memory_bytes)
    if as_json:
        print_json(_as_plain(answer, target, time, measurement))
    else:
        _print(answer, target, time, measurement)
    sys.stdout.flush()
    if fits is False:
        raise typer.Exit(1)


def _target(device: str | None, memory: str | None, devices: int, nodes: int) -> Target:
    from ascendtune.machine.visible import visible_devices
    from ascendtune.train.plan.device_table import bytes_of, named_target
    from ascendtune.train.plan.estimator import target_here

    ranks = devices * nodes
    target = named_target(device, ranks) if device else target_here(visible_devices(), devices)
    target = replace(target, devices=ranks, nodes=nodes)
    # The memory is that of another device, in an unknown host.
    return replace(target, memory_bytes=bytes_of(memory), host_bytes=None) if memory else target


def _time(
    answer: EstimatorResult,
    target: Target,
    history: Sequence[PastRun],
    flops: float | None,
    link: float | None,
    network: float | None,
) -> TimeEstimate | str:
    """The time of the run, or why it is unknown; `flops`, `link` and `network` as given, None: as published."""
    from ascendtune.train.plan.device_table import speed_of
    from ascendtune.train.plan.time_estimate import estimate_time, features_of

    if answer.work is None:
        return "the work of a step cannot be counted for this model"
    speed = speed_of(target.name, answer.work.compute)
    speed = replace(
        speed, flops=flops or speed.flops,
        link=link or speed.link, link_is_mesh=speed.link_is_mesh and link is None, network=network,
    )  # fmt: skip
    features = features_of(answer.work, answer.steps, answer.recipe, target, answer.estimate.facts)
    return estimate_time(answer.work, answer.steps, answer.recipe, target, speed, features, history)


def _as_plain(
    answer: EstimatorResult, target: Target, time: TimeEstimate | str, found: MeasuredRun | None
) -> dict[str, Any]:
    """The answer for programs. Sizes include what the framework and the driver take, as those of the text do."""
    estimate, batch = answer.estimate, answer.recipe.batch
    sizes = {"low": estimate.low, "expected": estimate.expected, "high": estimate.high}
    return {
        "target": asdict(target),
        "fits": estimate.fits(target.memory_bytes),
        "peak_bytes": {name: size + estimate.context for name, size in sizes.items()},
        "moment": estimate.moment,
        "at_peak_bytes": {**estimate.at_peak, "context": estimate.context},
        "moments_bytes": {name: size + estimate.context for name, size in estimate.moments.items()},
        "resting_bytes": estimate.resting + estimate.context,
        "host_bytes": estimate.host,
        "host_shortage": estimate.host_shortage(target),
        "facts": estimate.facts,
        "notes": estimate.notes,
        "batch": {"per_device": batch.micro_batch, "accumulate": batch.accumulate, "layout": _layout(answer)},
        "changes": [
            {"keys": each["keys"], "why": each["why"], "peak_bytes": each["expected"] + estimate.context}
            for each in answer.changes
        ],
        "time": None if isinstance(time, str) else _time_as_plain(time),
        "time_unknown_because": time if isinstance(time, str) else None,
        "measured": asdict(found) if found else None,
    }


def _time_as_plain(time: TimeEstimate) -> dict[str, Any]:
    content = asdict(time)
    return {"parts_seconds": content.pop("parts"), **content}


def _print(answer: EstimatorResult, target: Target, time: TimeEstimate | str, found: MeasuredRun | None) -> None:
    from ascendtune.cli.plan_measure import measured_lines
    from ascendtune.cli.plan_time import time_lines

    lines = [f"time: {time}"] if isinstance(time, str) else time_lines(time)
    lines += ["", *measured_lines(found)] if found else []
    print(wrapped("\n".join([_as_text(answer, target), "", *lines]), width(sys.stdout)))
    for note in (*(() if isinstance(time, str) else time.notes), *answer.estimate.notes):
        warn(note)
    if (shortage := answer.estimate.host_shortage(target)) is not None:
        warn(shortage)


def _as_text(answer: EstimatorResult, target: Target) -> str:
    estimate, facts, batch = answer.estimate, answer.estimate.facts, answer.recipe.batch
    rows = [[_TITLES.get(name, name), format_bytes(size)] for name, size in estimate.at_peak.items()]
    rows.append(["framework and driver", format_bytes(estimate.context)])
    rows = [row for row in rows if row[1] != "0 B"]
    nodes = f" of {count_of(target.nodes, 'node')}" if target.nodes > 1 else ""
    lines = [
        f"{format_count(facts['trainable'])} of {format_count(facts['parameters'])} parameters train, "
        f"{facts['precision']}, weights {facts['weights']}, {facts['strategy']} on "
        f"{count_of(target.devices, 'device')}{nodes}",
        f"batch.per_device {batch.micro_batch}; largest micro-batch: {facts['tokens']:,} tokens, "
        f"{_layout(answer)} ({facts['how']})",
    ]
    if answer.recipe.parallel.strategy == "auto" and facts["strategy"] == "fsdp":
        lines.append(f"parallel.strategy: auto is fsdp: {facts['reason']}")
    lines += [
        "",
        table(["at the peak of one rank", "bytes"], rows, right=["bytes"]),
        "",
        f"peak: {format_bytes(estimate.expected + estimate.context)} expected, "
        f"{format_bytes(estimate.low + estimate.context)} to {format_bytes(estimate.high + estimate.context)}; "
        f"moment: {_moment(estimate.moment)}",
    ]
    if estimate.host:
        lines.append(
            f"host memory for each rank: {format_bytes(estimate.host)}, in part only while the model is made or a "
            "checkpoint is written"
        )
    lines.append(_verdict(answer, target))
    for change in answer.changes:
        keys = " ".join(f"{key}={_value(value)}" for key, value in change["keys"].items())
        lines.append(f"  {keys}\n    {format_bytes(change['expected'] + estimate.context)} expected: {change['why']}")
    return "\n".join(lines)


def _verdict(answer: EstimatorResult, target: Target) -> str:
    device = f"{target.name}, {format_bytes(target.memory_bytes)}"
    match answer.estimate.fits(target.memory_bytes):
        case True:
            return f"fits on {device}"
        case None:
            sentence = f"may not fit on {device}: the limit lies between the low and the high estimate"
        case _:
            sentence = f"does not fit on {device}"
    return (
        f"{sentence}; {'changes that fit, the cheapest first:' if answer.changes else 'no change was found that fits'}"
    )


def _layout(answer: EstimatorResult) -> str:
    """Layout of the rows of a micro-batch: packed, padded, or neither."""
    if answer.recipe.has_rows_alone:
        return "not packed, nothing to pad"
    if not answer.estimate.facts["padding_free"]:
        return "padded"
    return "packed" if answer.recipe.may_pack else "not packed, without padding"


def _moment(name: str) -> str:
    """Blocks are numbered from the first, 0, or with a minus from the last."""
    kind, _, block = name.rpartition(" ")
    if kind not in ("forward", "backward") or not block.lstrip("-").isdigit():
        return name
    number = int(block)
    if number < -1:
        return f"{kind} pass of block {-number} from the end"
    return f"{kind} pass of {'the last block' if number == -1 else f'block {number}'}"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
