from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascendtune.train.objective.double_float import DoubleFloat, row_sums, to_double_float

numbers = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


def _exact(value: DoubleFloat) -> Fraction:
    return Fraction(float(value.high)) + Fraction(float(value.low))


@given(values=st.lists(numbers, max_size=70))
@settings(max_examples=200, deadline=None)
def test_row_sum_has_twice_the_digits(values: list[float]) -> None:
    found = row_sums(torch.tensor([values], dtype=torch.float32).view(1, len(values)))
    size = sum(abs(each) for each in values)
    assert abs(_exact(found) - sum(map(Fraction, values))) <= Fraction(size) * len(values) / 2**47


def test_row_sum_of_a_hundred_thousand_log_probs() -> None:
    random = np.random.default_rng(0)
    values = (-random.gamma(2.0, 3.0, (3, 100_001))).astype(np.float32)
    found = row_sums(torch.tensor(values))
    for number, row in enumerate(values):
        expected = math.fsum(row.tolist())
        assert abs(float(found.high[number]) + float(found.low[number]) - expected) <= 1e-12 * abs(expected)


def test_rows_without_columns_sum_to_nothing() -> None:
    values = torch.zeros(2, 0, requires_grad=True)
    found = row_sums(values)
    found.value.sum().backward()
    assert found.value.tolist() == [0, 0] and values.grad is not None and values.grad.shape == (2, 0)


@pytest.mark.long
@given(one=numbers, other=numbers, divisor=st.integers(1, 200_000))
@settings(max_examples=300, deadline=None)
def test_arithmetic_has_twice_the_digits(one: float, other: float, divisor: int) -> None:
    a, b = (to_double_float(torch.tensor([each], dtype=torch.float32)) for each in (one, other))
    assert _exact(a.plus(b)) == Fraction(one) + Fraction(other)
    assert _exact(a.minus(b)) == Fraction(one) - Fraction(other)
    quotient, exact = a.divided_by(torch.tensor([float(divisor)])), Fraction(one) / divisor
    # What is below fp32's smallest normal number is lost.
    assert abs(_exact(quotient) - exact) <= abs(exact) / 2**43 + Fraction(2) ** -120


def test_gradients_are_those_of_plain_arithmetic() -> None:
    values = torch.randn(4, 9, requires_grad=True)
    other, divisor = torch.randn(4, requires_grad=True), torch.tensor([3.0, 7.0, 11.0, 13.0])
    found = row_sums(values).minus(to_double_float(other)).divided_by(divisor).value
    found.backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0]) / divisor
    assert values.grad is not None and other.grad is not None
    torch.testing.assert_close(values.grad, expected[:, None].expand(4, 9), rtol=1e-7, atol=0)
    torch.testing.assert_close(other.grad, -expected, rtol=1e-7, atol=0)
    assert found.detach().tolist() == pytest.approx(((values.double().sum(1) - other.double()) / divisor).tolist())
