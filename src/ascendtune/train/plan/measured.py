"""Measurements of real steps beside their predictions, and the corrected estimate. Free of torch."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascendtune.core.errors import CheckFailed
from ascendtune.core.foreign_json import is_number
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import UNTRACKED
from ascendtune.train.plan.estimator import EstimatorResult
from ascendtune.train.plan.history import PastRun, new_run
from ascendtune.train.plan.request import Estimate, Target
from ascendtune.train.plan.time_estimate import features_of

STEPS = 2
"""The optimizer's state exists from the first step on, so the second one has the peak; the first one is slower."""
_LETTERS_OF_A_TOKEN = 16
"""Upper bound for the random letters in a token."""
_MOST_ROWS = 64
_MOST = 1e18


@dataclass(frozen=True)
class MeasuredRun:
    """Measurements of one rank of a run with full rows."""

    run: str
    predicted_bytes: int
    measured_bytes: int | None
    """None if the device's report includes memory other than tensors, as a CPU's does."""
    predicted_seconds: float | None
    """Prediction for a step; None if nothing was known about the speed."""
    measured_seconds: float

    @property
    def memory_factor(self) -> float:
        """Factor to correct estimates of this recipe."""
        return self.measured_bytes / self.predicted_bytes if self.measured_bytes else 1.0


def write_full_rows(path: Path, recipe: Recipe) -> None:
    """Write rows that each fill `data.max_length`, for one global batch of one device.

    At most `_MOST_ROWS` are written: the steps repeat them.
    """
    letters = random.Random(0)
    size = _LETTERS_OF_A_TOKEN * recipe.data.max_length

    def text() -> str:
        # Random letters: a tokenizer has few tokens for sequences of them.
        return " ".join("".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(size // 6))

    def rows() -> Iterator[dict[str, Any]]:
        prompt = [{"role": "user", "content": "?"}]
        for number in range(min(_MOST_ROWS, 2 * recipe.batch.micro_batch * recipe.batch.accumulate)):
            answer = [{"role": "assistant", "content": text()}]
            match recipe.method.task:
                case "text":
                    yield {"text": text()}
                case "conversations":
                    yield {"messages": [*prompt, *answer]}
                case "pairs":
                    other = [{"role": "assistant", "content": text()}]
                    yield {"prompt": prompt, "chosen": answer, "rejected": other}
                case "singles":
                    yield {"prompt": prompt, "completion": answer, "label": number % 2 == 0}

    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in rows())


def keys_of_measurement(recipe: Recipe, rows: Path, name: str) -> list[str]:
    """Overrides of `recipe` that train its first steps on `rows`."""
    # The profile ends the run without evaluation, checkpoint and model; its profiler starts one step earlier.
    last = STEPS + 2
    return [
        f"data.train={json.dumps([{'path': str(rows)}])}",
        "data.eval=[]",
        "data.eval_fraction=0",
        "data.eval_rows=null",
        "eval.every_steps=null",
        "eval.early_stop=null",
        "checkpoint.best=false",
        "align.dump_steps=null",
        "data.on_long_row=truncate",
        f"batch.per_device={recipe.batch.micro_batch}",
        "optim.epochs=null",
        f"optim.max_steps={last}",
        "track.every_steps=1",
        *UNTRACKED,
        f"profile.steps={last}",
        "profile.ranks=[0]",
        "profile.only=true",
        "checkpoint.resume=never",
        f"name={name}",
    ]


def read_measured(
    run: RunDir, predicted: EstimatorResult, predicted_seconds: float | None, target: Target
) -> MeasuredRun:
    """Read what the steps of `run` took.

    Args:
        predicted: estimate for the rows of this run.
        predicted_seconds: prediction for a step.

    Raises:
        CheckFailed: the run has not recorded them.
    """
    record = next((each for each in run.read_metrics() if each.get("step") == STEPS), {})
    seconds, peak = (record.get("seconds") or {}).get("step"), record.get("memory_peak_bytes")
    if not is_number(seconds, 1e-9, _MOST) or not is_number(peak, 1, _MOST):
        raise CheckFailed(
            f"step {STEPS} is not in the run's metrics",
            code="nothing-measured",
            remedy="`ascendtune train` with the same recipe shows what is wrong",
            where=run.metrics,
        )
    return MeasuredRun(
        str(run), predicted.estimate.expected, None if target.is_host else int(peak), predicted_seconds, seconds
    )


def corrected(estimate: Estimate, factor: float) -> Estimate:
    """`estimate` with all sizes on the device multiplied by `factor`."""

    def times(values: dict[str, int]) -> dict[str, int]:
        return {name: round(size * factor) for name, size in values.items()}

    at_peak = times(estimate.at_peak)
    return replace(
        estimate, expected=sum(at_peak.values()), low=round(estimate.low * factor), high=round(estimate.high * factor),
        at_peak=at_peak, moments=times(estimate.moments), resting=round(estimate.resting * factor),
    )  # fmt: skip


def as_past_run(measured: MeasuredRun, answer: EstimatorResult, target: Target, device: str) -> PastRun | None:
    """The measurement as a past run, for predicting the recipe's time; None if its work is unknown.

    Args:
        answer: estimate for the rows that were measured.
        device: the device's name in the table of devices.
    """
    work, steps = answer.work, answer.steps
    if work is None:
        return None
    mean = work.flops.per_token(steps.lengths, padding_ratio=steps.padding_ratio)
    computed = mean.computed_flops(steps.tokens, steps.labels) / target.devices
    return new_run(
        device, target.kind, features_of(work, steps, answer.recipe, target, answer.estimate.facts),
        flops_per_second=computed / measured.measured_seconds, step_seconds=measured.measured_seconds,
        predicted_seconds=measured.predicted_seconds, peak_bytes=measured.measured_bytes,
        predicted_bytes=measured.predicted_bytes,
    )  # fmt: skip
