"""Sums with twice the digits of their dtype, for devices with and without fp64.

The summed log-probability of an answer of 4,000 tokens is about -20,000; fp32 has steps of 0.002 there. Losses depend
on differences of such sums, so a sum is stored as the unevaluated sum of two numbers, `high + low`, about 48 bits in
fp32 (T. J. Dekker, Numer. Math. 18, 1971). Only operations that round to nearest are used, so results do not depend on
the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor


class DoubleFloat(NamedTuple):
    """`high + low`, with |low| at most about half a unit in the last place of `high`.

    All inputs and results: (…,) fp32, of one shape.
    """

    high: Tensor
    low: Tensor

    @property
    def value(self) -> Tensor:
        """The sum, rounded to one number."""
        return self.high + self.low

    def at(self, index: slice) -> DoubleFloat:
        """The entries at `index`."""
        return DoubleFloat(self.high[index], self.low[index])

    def plus(self, other: DoubleFloat) -> DoubleFloat:
        """The sum, to about 48 bits (Dekker 1971, algorithm add2)."""
        high, error = _two_sum(self.high, other.high)
        return DoubleFloat(*_two_sum(high, error + (self.low + other.low)))

    def minus(self, other: DoubleFloat) -> DoubleFloat:
        return self.plus(DoubleFloat(-other.high, -other.low))

    def divided_by(self, divisor: Tensor) -> DoubleFloat:
        """The quotient; the divisors are plain numbers of the same shape."""
        quotient = self.high / divisor
        product, error = _two_product(quotient, divisor)
        remainder = ((self.high - product) - error) + self.low
        return DoubleFloat(*_two_sum(quotient, remainder / divisor))


def to_double_float(value: Tensor) -> DoubleFloat:
    """Plain numbers, (…,) fp32, with a low part of 0."""
    return DoubleFloat(value, torch.zeros_like(value))


def row_sums(values: Tensor) -> DoubleFloat:
    """(rows,): the sum of each row of `values`, (rows, columns) fp32, added in pairs. Gradients flow through `high`."""
    high, low = _RowSums.apply(values)  # type: ignore[no-untyped-call]
    return DoubleFloat(high, low)


class _RowSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        ctx.columns = values.shape[1]
        high = values if ctx.columns else values.new_zeros(len(values), 1)
        low = torch.zeros_like(high)
        while (columns := high.shape[1]) > 1:
            # The two halves start at opposite ends, so that they are equally long; a column in the middle is left over.
            half = columns // 2
            first, middle, last = high.split((half, columns - 2 * half, half), dim=1)
            first_low, middle_low, last_low = low.split((half, columns - 2 * half, half), dim=1)
            total, error = _two_sum(first, last)
            high = torch.cat([total, middle], dim=1)
            low = torch.cat([error + (first_low + last_low), middle_low], dim=1)
        total, rest = _two_sum(high[:, 0], low[:, 0])
        ctx.mark_non_differentiable(rest)
        return total, rest

    @staticmethod
    def backward(ctx: Any, grad_high: Tensor, grad_low: Tensor) -> Tensor:
        return grad_high[:, None].expand(-1, ctx.columns)


def _two_sum(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum and its rounding error, together exact (D. E. Knuth, TAOCP 2, 4.2.2, theorem B)."""
    total = one + other
    of_other = total - one
    return total, (one - (total - of_other)) + (other - of_other)


def _two_product(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded product and its rounding error, together exact in fp32 (Dekker, section 5)."""
    product = one * other
    (one_high, one_low), (other_high, other_low) = _halves(one), _halves(other)
    error = ((one_high * other_high - product) + one_high * other_low + one_low * other_high) + one_low * other_low
    return product, error


def _halves(value: Tensor) -> tuple[Tensor, Tensor]:
    """The leading 12 bits of an fp32 number, and the rest."""
    scaled = value * 4097.0
    high = scaled - (scaled - value)
    return high, value - high
