"""Layers with the delta rule amplify a difference of weights: trainings with them agree less than precision says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ascendtune.check.align.curve import Curve
from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics
from ascendtune.check.align.loss_noise import expected_noise, extra_noise
from ascendtune.check.align.paired_tensors import make_tensor_rows
from ascendtune.check.align.stages import compare_trainings
from ascendtune.check.align.tensor_noise import ExtraNoise
from ascendtune.check.align.training_record import TrainingRecord

DELTA = ("linear_attn.A_log", "linear_attn.dt_bias")
MAMBA = ("mamba.A_log", "mamba.dt_bias", "mamba.D")
ATTENTION = ("self_attn.q_proj.weight",)


def _side(losses: list[float], layer: tuple[str, ...]) -> TrainingRecord:
    columns = {"step": np.arange(1.0, 1.0 + len(losses)), "loss": np.array(losses)}
    curve = Curve.of_columns(columns, [None] * len(losses), resolution=0.0, source="x")
    hashes = {"parameters": {f"model.layers.0.{name}": "00" for name in layer}}
    recipe = {"method.stage": "sft"}
    return TrainingRecord(
        "x", Path("x"), "ascendtune", curve, recipe=recipe, precision="fp32", layers=2, start_weights=hashes
    )


@pytest.mark.parametrize(
    ("losses", "layer", "divergence"),
    [
        ([2.0, 1.0 + 4e-6], DELTA, None),
        ([2.0, 1.0 + 4e-6], MAMBA, "update"),
        ([2.0, 1.0 + 4e-6], ATTENTION, "update"),
        ([2.0, 1.0 + 4e-4], DELTA, "update"),
        # Before the first update weights are equal.
        ([2.0 + 8e-6, 1.0], DELTA, "forward"),
    ],
)
def test_losses_after_an_update_may_differ_more(
    losses: list[float], layer: tuple[str, ...], divergence: str | None
) -> None:
    sides = _side([2.0, 1.0], layer), _side(losses, layer)
    found = compare_trainings(*sides, expected_noise(*sides)).divergence
    assert (found and found.code) == divergence


def test_one_side_alone_may_have_recorded_its_weights() -> None:
    assert extra_noise(_side([2.0], ()), _side([2.0], DELTA)).after_update > 1.0
    assert extra_noise(_side([2.0], ATTENTION)).after_update == 1.0


@pytest.mark.parametrize(("layer", "is_told"), [(DELTA, True), (ATTENTION, False)])
def test_wider_limits_are_told(layer: tuple[str, ...], is_told: bool) -> None:
    basis = expected_noise(_side([2.0], layer), _side([2.0], layer)).basis
    assert ("delta rule" in str(basis)) is is_told


@pytest.mark.parametrize(
    ("layer", "norm", "divergence"),
    [
        (DELTA, 1 + 3e-5, None),
        (ATTENTION, 1 + 3e-5, "backward"),
        (DELTA, 1 + 3e-3, "backward"),
    ],
)
def test_norms_of_gradients_may_differ_more(layer: tuple[str, ...], norm: float, divergence: str | None) -> None:
    def side(norm: float) -> TrainingRecord:
        made = _side([2.0, 1.0], layer)
        return replace(made, curve=replace(made.curve, grad_norms=np.full(2, norm)))

    sides = side(1.0), side(norm)
    found = compare_trainings(*sides, expected_noise(*sides)).divergence
    assert (found and found.code) == divergence


def _dump(gradient: float) -> RankDump:
    samples = tuple(gradient * each for each in (1.0, -1.0, 1.0, -1.0))
    tensor = TensorStatistics(0, "", (2, 2), "float32", -gradient, gradient, 0.0, 2 * gradient, 0, 0, "", samples)
    return RankDump(Path("rank.jsonl"), 1, {TensorKey("gradient", None, "a.weight", "", 0): tensor})


@pytest.mark.parametrize(
    ("step", "apart", "wider", "exceeds_limit"),
    [
        (1, 5e-6, 10.0, True),
        (2, 5e-6, 1.0, True),
        (2, 5e-6, 10.0, False),
        (2, 5e-5, 10.0, True),
        (3, 5e-5, 10.0, False),
        (4, 5e-4, 10.0, False),
        # No wider from here on.
        (5, 5e-3, 10.0, True),
    ],
)
def test_limits_of_gradients_grow_with_the_first_updates(
    step: int, apart: float, wider: float, exceeds_limit: bool
) -> None:
    (row,) = make_tensor_rows(
        step, 0, _dump(1.0), _dump(1.0 + apart), ExtraNoise(after_update=wider), with_modules=True
    )
    assert row.exceeds_limit == exceeds_limit
