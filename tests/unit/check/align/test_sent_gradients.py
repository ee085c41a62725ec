"""`parallel.reduce_dtype: bf16`: gradients are rounded before ranks add them, for every dtype of products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ascendtune.check.align.curve import Curve
from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.paired_tensors import make_tensor_rows
from ascendtune.check.align.stages import compare_trainings
from ascendtune.check.align.tensor_noise import ExtraNoise
from ascendtune.check.align.training_record import TrainingRecord


def _side(losses: list[float], norm: float, reduce_dtype: str) -> TrainingRecord:
    steps = np.arange(1.0, 1.0 + len(losses))
    columns = {"step": steps, "loss": np.array(losses), "grad_norm": np.full(len(losses), norm)}
    curve = Curve.of_columns(columns, [None] * len(losses), resolution=0.0, source="x")
    recipe = {"method.stage": "sft", "parallel.reduce_dtype": reduce_dtype}
    return TrainingRecord("x", Path("x"), "ascendtune", curve, recipe=recipe, precision="fp32", layers=2)


@pytest.mark.parametrize(
    ("losses", "norm", "reduce_dtype", "divergence"),
    [
        ([2.0, 1.0005], 1.002, "bf16", None),
        ([2.0, 1.0], 1.002, "fp32", "backward"),
        ([2.0, 1.0005], 1.0, "fp32", "update"),
        # What goes forward in the first step has not met a gradient.
        ([2.001, 1.0], 1.0, "bf16", "forward"),
        ([2.0, 1.0], 1.2, "bf16", "backward"),
    ],
)
def test_records_may_differ_by_what_was_rounded(
    losses: list[float], norm: float, reduce_dtype: str, divergence: str | None
) -> None:
    sides = _side([2.0, 1.0], 1.0, "fp32"), _side(losses, norm, reduce_dtype)
    found = compare_trainings(*sides, expected_noise(*sides)).divergence
    assert (found and found.code) == divergence


def _dump(**factors: float) -> RankDump:
    tensors = {}
    for order, (phase, factor) in enumerate(factors.items()):
        samples = tuple(factor * each for each in (1.0, -1.0, 1.0, -1.0))
        key = TensorKey(phase, None, "a.weight", "", 0)
        tensors[key] = TensorStatistics(
            order, "", (2, 2), "float32", -factor, factor, 0.0, 2 * factor, 0, 0, "", samples
        )
    return RankDump(Path("rank.jsonl"), 1, tensors)


@pytest.mark.parametrize(
    ("step", "sends_bf16", "divergence"),
    [(1, True, ["forward"]), (1, False, ["forward", "gradient"]), (2, True, [])],
)
def test_gradients_may_differ_by_what_was_rounded(step: int, sends_bf16: bool, divergence: list[str]) -> None:
    sides = _dump(forward=1.0, gradient=1.0), _dump(forward=1.002, gradient=1.003)
    rows = make_tensor_rows(step, 0, *sides, ExtraNoise(sends_bf16=sends_bf16), with_modules=True)
    assert [row.key.phase for row in rows if row.exceeds_limit] == divergence
