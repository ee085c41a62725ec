"""Losses of two trainings are brought to the same steps, whoever recorded them and how often."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ascendtune.check.align.curve import Curve, paired
from ascendtune.core.errors import DataError

NAMES = {"step": "step", "loss": "loss"}


def curve(losses: dict[int, object], *, rounded: bool = False) -> Curve:
    records = [{"step": step, "loss": loss} for step, loss in losses.items()]
    return Curve.of_records(records, NAMES, rounded=rounded, source="test")


def test_last_record_of_a_repeated_step_counts() -> None:
    records = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "loss": 1.5}]
    found = Curve.of_records(records, NAMES, rounded=False, source="test")
    assert found.steps.tolist() == [1, 2] and found.losses.tolist() == [3.0, 1.5]


def test_evaluations_and_rows_without_a_step_are_left_out() -> None:
    records = [{"step": 1, "loss": 3.0}, {"step": 1, "eval_loss": 9.0}, {"loss": 1.0}, {"step": 1.5, "loss": 1.0}]
    assert Curve.of_records(records, NAMES, rounded=False, source="test").losses.tolist() == [3.0]


def test_no_record_is_an_error() -> None:
    with pytest.raises(DataError) as caught:
        curve({})
    assert caught.value.code == "no-training-records"


@pytest.mark.parametrize(("losses", "expected"), [({1: 2.1234, 2: 2.5}, 5e-5), ({1: 2.123456789012345}, 0.0)])
def test_resolution_is_half_a_unit_of_the_last_place(losses: dict[int, object], expected: float) -> None:
    assert curve(losses, rounded=True).resolution == pytest.approx(expected)


def test_common_steps_are_compared() -> None:
    pair = paired(curve({1: 4.0, 2: 3.0, 3: 2.0}), curve({2: 3.0, 3: 2.5, 4: 1.0}))
    assert pair.steps.tolist() == [2, 3]
    assert pair.difference.tolist() == [0.0, 0.25]


@pytest.mark.parametrize("swapped", [False, True])
def test_single_steps_are_averaged_over_the_windows_of_the_other_side(swapped: bool) -> None:
    dense = curve({step: float(step) for step in range(1, 8)})
    sparse = curve({3: 2.0, 6: 5.0, 9: 8.0})
    pair = paired(dense, sparse) if swapped else paired(sparse, dense)
    # Steps 8 and 9 were not recorded: the third window is left out.
    assert pair.steps.tolist() == [3, 6]
    assert pair.difference.tolist() == [0.0, 0.0]


def test_nan_spoils_its_own_window_alone() -> None:
    dense = curve({1: 1.0, 2: None, 3: 3.0, 4: 5.0})
    pair = paired(curve({2: 1.0, 4: 4.0}), dense)
    assert pair.steps.tolist() == [4] and pair.candidate.tolist() == [4.0]


def test_difference_is_absolute_below_a_loss_of_one() -> None:
    pair = paired(curve({1: 0.01, 2: 10.0}), curve({1: 0.02, 2: 11.0}))
    assert np.allclose(pair.difference, [0.01, 0.1])


def test_number_that_is_not_finite_has_no_difference() -> None:
    assert math.isnan(paired(curve({1: 1.0}), curve({1: None})).difference[0])


def test_steps_of_one_curve_alone_are_named() -> None:
    pair = paired(curve({1: 4.0, 2: 3.0}), curve({2: 3.0, 3: 2.5, 4: 1.0}))
    assert (pair.reference_alone.tolist(), pair.candidate_alone.tolist()) == ([1], [3, 4])


@pytest.mark.parametrize("swapped", [False, True])
def test_windows_and_steps_that_are_not_compared_are_alone(swapped: bool) -> None:
    dense, sparse = curve(dict.fromkeys((1, 2, 3, 5, 6, 7, 8), 1.0)), curve({2: 1.0, 4: 1.0, 6: 1.0})
    pair = paired(dense, sparse) if swapped else paired(sparse, dense)
    alone = [pair.reference_alone.tolist(), pair.candidate_alone.tolist()]
    # The window of steps 3 and 4 lacks step 4; steps 7 and 8 follow the last window.
    assert pair.steps.tolist() == [2, 6] and (alone[::-1] if swapped else alone) == [[4], [3, 7, 8]]
