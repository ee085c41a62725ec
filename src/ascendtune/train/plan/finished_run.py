"""Adds a finished run to the past runs on which predictions are based."""

from __future__ import annotations

import math
import statistics
from typing import Any

from ascendtune.core.errors import AscendtuneError
from ascendtune.core.log import warn
from ascendtune.core.rundir import RunDir
from ascendtune.machine.torch_backend.device import Device
from ascendtune.train.loop import Loop
from ascendtune.train.plan.device_table import known_name
from ascendtune.train.plan.history import (
    Features,
    add_to_history,
    new_run,
    past_speed,
    read_history,
    safe_name,
    tuner_of,
)

_LEAST_RECORDS = 3
"""The first record is ignored: it includes compilation, reading and the first allocations."""


def add_run(loop: Loop) -> None:
    """Append this attempt, unless too few steps were recorded. Called on the main rank only."""
    record, strategy = loop.run_directory.read(), loop.strategy
    steps = [each for each in loop.run_directory.read_metrics() if each["attempt"] == loop.phases.attempt]
    if len(steps) < _LEAST_RECORDS:
        return
    device, planned = strategy.device, record.get("plan") or {}
    measured = _measured(steps, loop)
    if measured is None:
        return
    features, name = _features(loop, record["resolved"]), safe_name(known_name(device.name))
    history = read_history()
    past = past_speed(name, features, history)
    predicted = planned.get("step_seconds")
    if past is not None:
        predicted = measured["flops_per_second"] * measured["step_seconds"] / past.expected
    # A CPU process's resident set includes more than an estimate.
    is_comparable = not device.shares_host_memory and "expected_bytes" in planned
    try:
        add_to_history(
            new_run(
                name, device.kind, features, **measured, predicted_seconds=predicted,
                peak_bytes=device.memory_peak_bytes(),
                predicted_bytes=planned["expected_bytes"] if is_comparable else None,
            )
        )  # fmt: skip
    except (OSError, AscendtuneError) as error:
        warn(f"this run is not among the past runs of `ascendtune plan --history`: {error}")


def note_peak(run: RunDir, planned: dict[str, Any] | None, device: Device) -> None:
    """Store the main rank's peak of this attempt beside the estimate from before the run."""
    if planned:
        run.update(plan={**planned, "measured_bytes": device.memory_peak_bytes()})


def _measured(steps: list[dict[str, Any]], loop: Loop) -> dict[str, float] | None:
    """`flops_per_second` of one rank, the median over records, and `step_seconds` at that speed."""
    ranks = loop.strategy.world_size
    flops = [loop.recorder.flops.computed_flops(each["tokens"], each["labelled_tokens"]) / ranks for each in steps[1:]]
    seconds = [each["seconds"]["step"] for each in steps[1:]]
    if min(seconds) <= 0 or min(flops) <= 0:
        return None
    speed = statistics.median(each / took for each, took in zip(flops, seconds, strict=True))
    steps_between = steps[-1]["step"] - steps[0]["step"]
    return {"flops_per_second": speed, "step_seconds": sum(flops) / steps_between / speed}


def _features(loop: Loop, resolved: dict[str, Any]) -> Features:
    """The same as `time_estimate.features_of` computes before the run."""
    recipe, strategy = loop.recipe, loop.strategy
    plan, at_once = loop.batches.plan, recipe.batch.micro_batch * strategy.world_size
    tokens = float(loop.batches.dataset.lengths.sum()) / plan.steps_per_epoch
    # A resumed run keeps its global batch, whatever `batch.accumulate` is.
    micro_batches = math.ceil(plan.global_batch / at_once) * strategy.world_size
    config: Any = loop.model.config
    return Features(
        model_type=safe_name(str(getattr(config, "model_type", ""))),
        parameters=resolved["parameters"], trainable=resolved["trainable"],
        stage=recipe.method.stage, tuner=tuner_of(recipe), precision=resolved["precision"]["compute"],
        strategy=strategy.name, checkpointing=recipe.memory.gradient_checkpointing,
        positions=round(tokens / (1 - resolved["padding_ratio"]) / micro_batches), ranks=strategy.world_size,
    )  # fmt: skip
