"""Curves are read from records of many kinds."""

from __future__ import annotations

import pytest

from ascendtune.check.align.curve import Curve
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
