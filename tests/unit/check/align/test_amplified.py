"""Differences of losses that an unstable training makes of rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ascendtune.check.align.curve import Curve
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.align.verdict import verdict

STEPS = 40
Values = NDArray[np.float64]


def _record(name: str, losses: Values, precision: str) -> TrainingRecord:
    columns = {"step": np.arange(1.0, len(losses) + 1), "loss": losses, "labelled_tokens": np.full(len(losses), 200.0)}
    curve = Curve.of_columns(columns, [None] * len(losses), resolution=0.0, source=name)
    return TrainingRecord(name, Path(name), "recorded", curve, precision=precision, layers=4)


def _compared(reference: Values, candidate: Values, precision: str) -> TrainingComparison:
    sides = _record("gpu", reference, precision), _record("npu", candidate, precision)
    return compare_trainings(*sides, expected_noise(*sides))


def _unstable(seed: int) -> Values:
    """Losses that go up and down by a fifth."""
    return np.asarray(2.5 + 0.5 * np.random.default_rng(seed).uniform(-1, 1, STEPS), dtype=np.float64)


def _apart(seed: int, at_ten: float, factor: float) -> Values:
    """Differences with a random sign and size, that grow by `factor` a step, over `at_ten`, to a twentieth."""
    size = np.minimum(at_ten * factor ** (np.arange(STEPS) - 10.0), 0.05)
    return np.asarray(size * np.random.default_rng(seed).normal(0, 1, STEPS), dtype=np.float64)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("precision", "at_ten", "factor"), [("fp32", 1e-7, 3.0), ("fp32", 1e-7, 8.0), ("bf16", 5e-3, 1.6)]
)
def test_rounding_that_grows_to_the_jumps_of_the_losses_is_not_a_failure(
    seed: int, precision: str, at_ten: float, factor: float
) -> None:
    reference = _unstable(seed)
    found = _compared(reference, reference * (1 + _apart(seed + 100, at_ten, factor)), precision)
    assert found.divergence is None, found.divergence
    assert [each.code for each in found.hints] == ["later"]
    said = verdict(found, *(_record(name, reference, precision) for name in "ab"))
    assert "this training amplifies it" in said


def test_a_difference_above_the_jumps_of_the_losses_is_not_instability() -> None:
    reference = np.asarray(3 - np.arange(STEPS) / 100)
    found = _compared(reference, reference * (1 + _apart(1, 5e-3, 1.6)), "bf16")
    assert found.divergence is not None and found.divergence.code == "later"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_difference_after_the_first_updates_is_not_instability(precision: str) -> None:
    reference, step = _unstable(3), np.arange(STEPS)
    found = _compared(reference, reference + np.where(step >= 2, 0.4, 0.0) * np.sign(_apart(4, 1.0, 1.0)), precision)
    assert found.divergence is not None and found.divergence.code == "update" and found.step == 3


@pytest.mark.parametrize("power", [1, 2, 3])
def test_difference_that_adds_up_with_the_updates_is_told_in_fp32(power: int) -> None:
    reference, step = _unstable(5), np.arange(STEPS)
    shape = step**power * np.abs(np.random.default_rng(6).normal(1, 0.2, STEPS))
    for size in (1e-6, 1e-5):
        found = _compared(reference, reference + size * shape, "fp32")
        assert found.divergence is not None, size


def test_late_difference_of_one_sign_is_told_in_16_bits() -> None:
    reference, step = _unstable(7), np.arange(STEPS)
    found = _compared(reference, reference + np.where(step >= 9, 0.2, 0.0), "bf16")
    assert found.divergence is not None and found.is_one_sided


def test_update_that_changes_the_loss_leaves_room_for_its_rounding() -> None:
    """In bf16 an update that takes a fifth of the loss away does so within some percent of itself."""
    reference = _unstable(8) + np.where(np.arange(STEPS) < 2, 1.0, 0.0)
    for apart, is_told in ((0.1, False), (0.6, True)):
        candidate = reference.copy()
        candidate[2] += apart
        found = _compared(reference, candidate, "bf16")
        assert (found.divergence is not None) is is_told, found.findings
        assert bool(found.hints) is not is_told
        assert _compared(reference, candidate, "fp32").divergence is not None
