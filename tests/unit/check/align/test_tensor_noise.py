"""Limits and differences of tensors: closed forms, and random roundings that must stay below the limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ascendtune.check.align.dump import TensorStatistics
from ascendtune.check.align.tensor_noise import differences, limits

SAMPLES = 16


def tensor_of(values: np.ndarray, dtype: str = "float32", digest: str = "") -> TensorStatistics:
    flat = values.astype(np.float64).reshape(-1)
    finite = flat[np.isfinite(flat)]
    count = min(SAMPLES, len(flat))
    samples = tuple(float(flat[i * len(flat) // count]) for i in range(count))
    counts = int(np.isnan(flat).sum()), int(np.isinf(flat).sum())
    norm = float(np.linalg.norm(finite))
    numbers = float(finite.min()), float(finite.max()), float(finite.mean()), norm
    return TensorStatistics(0, "Linear", values.shape, dtype, *numbers, *counts, digest, samples)


def test_limit_is_the_documented_formula() -> None:
    one = tensor_of(np.ones((2, 8)), "bfloat16")
    found = limits([(one, one)] * 3, operations_before=4)
    unit = 2.0**-8
    expected = [4 * math.sqrt(2 * n * (unit**2 + 2.0**-48 * 8 / 2)) for n in (5, 6, 7)]
    assert found == pytest.approx(expected)


def test_coarsest_dtype_and_longest_sum_so_far_decide() -> None:
    wide, short = tensor_of(np.ones((2, 512))), tensor_of(np.ones((2, 4)))
    coarse = tensor_of(np.ones((2, 4)), "bfloat16")
    fine = limits([(short, short), (short, short)])
    assert limits([(wide, wide), (short, short)])[1] > fine[1]
    assert limits([(coarse, short), (short, short)])[1] == pytest.approx(4 * math.sqrt(4) * 2.0**-8, rel=1e-3)


def test_whole_numbers_must_be_equal() -> None:
    tokens = tensor_of(np.arange(8), "int64")
    assert limits([(tokens, tokens)]).tolist() == [0.0]


def test_difference_of_a_scaled_tensor_is_the_scale() -> None:
    values = np.random.default_rng(0).normal(size=(40, 50))
    found = differences([(tensor_of(values), tensor_of(values * 1.01))])
    assert found[0] == pytest.approx(0.01 / 1.01, rel=0.5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [(lambda each: each, 0.0), (lambda each: np.where(each > 2, np.nan, each), math.inf)],
    ids=["same", "NaN on one side"],
)
def test_difference_of_equal_tensors_is_zero_and_of_nan_is_infinite(change: object, expected: float) -> None:
    values = np.random.default_rng(0).normal(size=(40, 50))
    assert differences([(tensor_of(values), tensor_of(change(values)))]).tolist() == [expected]  # type: ignore[operator]


def test_equal_bytes_do_not_differ_and_other_shapes_are_not_compared() -> None:
    values = np.ones((2, 3))
    same = tensor_of(values, digest="aa"), tensor_of(2 * values, digest="aa")
    assert differences([same])[0] == 0
    assert math.isnan(differences([(tensor_of(values), tensor_of(values.T))])[0])


@pytest.mark.long
@pytest.mark.parametrize("terms", [16, 256, 4096])
def test_chain_of_products_in_fp32_stays_below_the_limit(terms: int) -> None:
    draw = np.random.default_rng(terms)
    exact = draw.normal(size=(8, terms)).astype(np.float32)
    values, reference = exact, exact.astype(np.float64)
    pairs = []
    for _ in range(6):
        weight = (draw.normal(size=(terms, terms)) / math.sqrt(terms)).astype(np.float32)
        # One term after the other: the order with the largest error.
        total = np.zeros((8, terms), np.float32)
        for term in range(terms if terms <= 256 else 0):
            total += values[:, term : term + 1] * weight[term]
        values = total if terms <= 256 else values @ weight
        reference = reference @ weight.astype(np.float64)
        pairs.append((tensor_of(reference), tensor_of(values)))
    found, most = differences(pairs), limits(pairs)
    assert (found > 0).all() and (found < most).all()
