"""Losses that are within rounding step by step, and lie on one side."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ascendtune.check.align.curve import Curve
from ascendtune.check.align.loss_noise import expected_noise, measured_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.align.verdict import verdict

STEPS, LAYERS, TOKENS = 200, 4, 200.0
SIGMA = 2.0**-8 * math.sqrt(4 * LAYERS)
"""Of a logit in bf16."""
Values = NDArray[np.float64]


def _record(name: str, losses: Values, norms: Values | None = None, kind: str = "recorded") -> TrainingRecord:
    steps = np.arange(1, len(losses) + 1, dtype=np.float64)
    columns = {"step": steps, "loss": losses, "grad_norm": np.ones(len(losses)) if norms is None else norms}
    curve = Curve.of_columns(
        {**columns, "labelled_tokens": np.full(len(losses), TOKENS)}, [None] * len(losses), resolution=0.0, source="x"
    )
    return TrainingRecord(name, Path(name), kind, curve, precision="bf16", layers=LAYERS)


def _reference() -> Values:
    return np.asarray(2.0 + np.exp(-np.arange(STEPS) / 50), dtype=np.float64)


def _noise(seed: int, steps: int = STEPS) -> Values:
    return np.random.default_rng(seed).normal(0, SIGMA / math.sqrt(TOKENS) / 2, steps)


def _compared(candidate: Values, norms: Values | None = None, kind: str = "recorded") -> TrainingComparison:
    sides = _record("gpu", _reference(), kind=kind), _record("npu", candidate, norms, kind)
    return compare_trainings(*sides, expected_noise(*sides))


def _drifted(seed: int) -> Values:
    """Differences of a chaotic training: with every batch another direction of the weights' difference counts."""
    draw = np.random.default_rng(seed)
    apart = np.cumsum(draw.normal(0, 1, (STEPS, 16)), axis=0)
    return np.asarray((apart * draw.normal(0, 1, (STEPS, 16))).sum(axis=1) * 2e-5)


@pytest.mark.parametrize("shape", ["constant", "growing", "late"])
def test_losses_on_one_side_are_named_though_each_is_within_rounding(shape: str) -> None:
    step = np.arange(STEPS)
    bias = {"constant": np.ones(STEPS), "growing": step / STEPS * 2, "late": np.where(step >= 90, 2.0, 0.0)}[shape]
    losses = _reference() * (1 + 1.5e-3 * bias + _noise(1))
    found = _compared(losses)
    assert found.divergence is not None and found.divergence.code == "later" and found.is_one_sided
    assert found.decisive_step == STEPS
    assert "higher on average" in found.divergence.measured and "--dump-steps" in (found.divergence.remedy or "")
    if shape == "late":
        assert found.step is not None and 90 <= found.step <= 120
    lower = _compared(_reference() * (1 - 1.5e-3 * bias + _noise(1)))
    assert lower.divergence is not None and "lower on average" in lower.divergence.measured


@pytest.mark.parametrize("seed", range(40))
def test_rounding_and_chaos_have_no_side(seed: int) -> None:
    for differences in (_noise(seed), _drifted(seed), _noise(seed) + _drifted(seed)):
        found = _compared(_reference() * (1 + differences), np.exp(_noise(seed + 100)))
        assert found.divergence is None and not found.hints, found.findings


def test_a_bias_that_rounding_explains_is_not_a_fault() -> None:
    losses = _reference() * (1 + 0.9 * SIGMA**2 + _noise(2) / 100)
    assert _compared(losses).divergence is None


def test_few_steps_prove_nothing() -> None:
    sides = _record("gpu", _reference()[:30]), _record("npu", _reference()[:30] * 1.0015)
    assert compare_trainings(*sides, expected_noise(*sides)).divergence is None


def test_losses_of_a_log_whose_means_are_not_known_are_a_warning_that_the_verdict_has() -> None:
    found = _compared(_reference() * 1.0015, kind="CSV")
    assert found.divergence is None and [each.code for each in found.hints] == ["later"]
    sides = _record("gpu", _reference()), _record("npu", _reference())
    assert "higher on average" in verdict(found, *sides)


def test_gradient_norms_on_one_side_are_a_warning() -> None:
    found = _compared(_reference() * (1 + _noise(3)), np.exp(0.01 + _noise(4)))
    assert found.divergence is None and [each.code for each in found.hints] == ["backward"]
    assert "larger on average" in found.hints[0].measured


def test_gradient_norm_of_the_first_step_is_named_before_losses_on_one_side() -> None:
    found = _compared(_reference() * (1 + 1.5e-3 * np.arange(STEPS) / 100 + _noise(1)), np.full(STEPS, 2.0))
    assert found.divergence is not None and (found.divergence.code, found.step, found.is_one_sided) == (
        "backward",
        1,
        False,
    )


def test_measured_noise_decides_alone() -> None:
    reference, candidate = _record("gpu", _reference()), _record("npu", _reference() * 1.0015)
    repeat = _record("gpu-2", _reference() * (1 + _noise(5)))
    noise = measured_noise(reference, [repeat], expected_noise(reference, candidate))
    assert compare_trainings(reference, candidate, noise).divergence is None


def test_comparison_in_bf16_says_what_it_cannot_tell() -> None:
    found = _compared(_reference() * (1 + _noise(6)))
    said = next(each for each in found.findings if each.code == "later").evidence[-1]
    assert said.startswith("bf16 rounding hides") and "precision=fp32" in said
