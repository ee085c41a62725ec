"""Muon orthogonalises updates in bf16: trainings with it agree less than their precision says."""

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


def _side(losses: list[float], optimizer: str) -> TrainingRecord:
    columns = {"step": np.arange(1.0, 1.0 + len(losses)), "loss": np.array(losses)}
    curve = Curve.of_columns(columns, [None] * len(losses), resolution=0.0, source="x")
    recipe = {"method.stage": "sft", "optim.optimizer": optimizer}
    return TrainingRecord("x", Path("x"), "ascendtune", curve, recipe=recipe, precision="fp32", layers=2)


@pytest.mark.parametrize(
    ("losses", "optimizer", "divergence"),
    [
        ([2.0, 1.0005], "muon", None),
        ([2.0, 1.0005], "adamw", "update"),
        ([2.001, 1.0], "muon", "forward"),
        ([2.0, 1.2], "muon", "update"),
    ],
)
def test_losses_after_an_update_may_differ_as_in_bf16(
    losses: list[float], optimizer: str, divergence: str | None
) -> None:
    sides = _side([2.0, 1.0], optimizer), _side(losses, optimizer)
    found = compare_trainings(*sides, expected_noise(*sides)).divergence
    assert (found and found.code) == divergence


def _dump(change: float, gradient: float = 1.0) -> RankDump:
    def tensor(order: int, shape: tuple[int, ...], factor: float) -> TensorStatistics:
        samples = tuple(factor * each for each in (1.0, -1.0, 1.0, -1.0))
        return TensorStatistics(order, "", shape, "float32", -factor, factor, 0.0, 2 * factor, 0, 0, "", samples)

    tensors = {}
    for order, (name, shape) in enumerate({"a.weight": (2, 2), "norm.weight": (4,)}.items()):
        tensors[TensorKey("parameter_before", None, name, "", 0)] = tensor(order, shape, 1.0)
        tensors[TensorKey("gradient", None, name, "", 0)] = tensor(order, shape, gradient)
        tensors[TensorKey("parameter_after", None, name, "", 0)] = tensor(order, shape, 1.0 - change)
    return RankDump(Path("rank.jsonl"), 1, tensors)


@pytest.mark.parametrize(("has_muon", "divergence"), [(True, ["norm.weight"]), (False, ["a.weight", "norm.weight"])])
def test_updates_of_matrices_are_not_compared(has_muon: bool, divergence: list[str]) -> None:
    rows = make_tensor_rows(1, 0, _dump(0.1), _dump(0.11), ExtraNoise(has_muon=has_muon), with_modules=True)
    assert [row.key.name for row in rows if row.exceeds_limit and row.key.phase == "parameter_after"] == divergence


@pytest.mark.parametrize(("step", "exceeds_limit"), [(1, True), (2, False)])
def test_gradients_after_an_update_may_differ_as_in_bf16(step: int, exceeds_limit: bool) -> None:
    rows = make_tensor_rows(
        step, 0, _dump(0.1), _dump(0.1, gradient=1.003), ExtraNoise(has_muon=True), with_modules=True
    )
    assert any(row.exceeds_limit for row in rows if row.key.phase == "gradient") == exceeds_limit
