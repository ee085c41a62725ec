"""Intervals of paired scores against closed forms, and their coverage by summing up every outcome."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from ascendtune.check.align.score_intervals import (
    beta_ratio,
    binomial_interval,
    bootstrap_interval,
    exact_interval,
    paired_interval,
    student_quantile,
)


def test_paired_interval_is_that_of_the_discordant_items() -> None:
    # Of n items b are won and c are lost: the variance of the mean is ((b + c) - (b - c)² / n) / n².
    size, won, lost = 2000, 130, 90
    differences = np.concatenate([np.ones(won), -np.ones(lost), np.zeros(size - won - lost)])
    mean = (won - lost) / size
    half = NormalDist().inv_cdf(0.975) * math.sqrt((won + lost) - (won - lost) ** 2 / size) / size
    low, high = bootstrap_interval(differences, 0.05)
    assert low == pytest.approx(mean - half, abs=0.05 * half) and high == pytest.approx(mean + half, abs=0.05 * half)


@pytest.mark.long
def test_interval_of_scores_with_many_values_is_that_of_their_mean() -> None:
    differences = np.random.default_rng(3).normal(0.1, 1, 900)
    half = NormalDist().inv_cdf(0.995) * differences.std() / 30
    low, high = bootstrap_interval(differences, 0.01)
    assert (low, high) == pytest.approx((differences.mean() - half, differences.mean() + half), abs=0.1 * half)


@pytest.mark.long
def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        low, high = bootstrap_interval(draw.choice([-1.0, 0.0, 1.0], size=400, p=[0.05, 0.85, 0.1]), 0.05)
        covered += low <= 0.05 <= high
    # 190 are expected; four standard deviations of a binomial are 12.
    assert 178 <= covered <= 200


@pytest.mark.parametrize(("a", "b"), [(1, 1), (3, 5), (40, 7), (300, 450)])
def test_beta_ratio_is_the_tail_of_a_binomial(a: int, b: int) -> None:
    trials = a + b - 1
    for x in (0.01, 0.3, 0.5, 0.9):
        tail = math.fsum(math.comb(trials, k) * x**k * (1 - x) ** (trials - k) for k in range(a, trials + 1))
        assert beta_ratio(x, a, b) == pytest.approx(tail, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("trials", [1, 10, 500])
def test_binomial_interval_without_a_success_has_its_closed_form(trials: int) -> None:
    most = 1 - 0.025 ** (1 / trials)
    assert binomial_interval(0, trials, 0.05) == pytest.approx((0, most), rel=1e-9)
    assert binomial_interval(trials, trials, 0.05) == pytest.approx((1 - most, 1), rel=1e-9)
    assert binomial_interval(0, 0, 0.05) == (0, 1)


def test_student_quantile_of_one_and_two_degrees_has_its_closed_form() -> None:
    assert student_quantile(0.05, 1) == pytest.approx(math.tan(math.pi * 0.475), rel=1e-9)
    assert student_quantile(0.05, 2) == pytest.approx(0.95 * math.sqrt(2 / (0.975 * 0.025)) / 2, rel=1e-9)
    assert student_quantile(0.05, 10**6) == pytest.approx(NormalDist().inv_cdf(0.975), rel=1e-5)


@pytest.mark.long
def test_interval_contains_zero_as_mcnemars_exact_test_says() -> None:
    for differing in range(1, 30):
        for won in range(differing + 1):
            low, high = exact_interval(40, won, differing - won, 0.05)
            tail = sum(math.comb(differing, k) for k in range(max(won, differing - won), differing + 1))
            assert (low <= 0 <= high) == (tail / 2**differing > 0.9 * 0.05 / 2)


@pytest.mark.parametrize("items", [3, 12])
@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.3, 0.3), (0.1, 0.02), (0.6, 0.2), (0.95, 0.05), (1.0, 0.0)])
def test_exact_interval_covers_the_truth_with_its_probability(items: int, shares: tuple[float, float]) -> None:
    won, lost = shares
    covered = 0.0
    for b in range(items + 1):
        for c in range(items + 1 - b):
            low, high = exact_interval(items, b, c, 0.05)
            ways = math.comb(items, b) * math.comb(items - b, c)
            chance = ways * won**b * lost**c * max(0.0, 1 - won - lost) ** (items - b - c)
            covered += chance * (low - 1e-9 <= won - lost <= high + 1e-9)
    assert covered >= 0.95


@pytest.mark.long
def test_interval_of_few_shares_covers_the_truth() -> None:
    draw = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        reference, candidate = draw.uniform(0, 0.5, 5), draw.uniform(0.1, 0.6, 5)
        low, high = paired_interval(reference, candidate, 0.05)
        covered += low <= 0.1 <= high
    # 190 are expected; four standard deviations of a binomial are 12.
    assert covered >= 178


def test_equal_shares_leave_room_for_items_that_were_not_seen() -> None:
    one = np.array([0.25, 0.5])
    share = 1 - 0.025**0.5
    assert paired_interval(one, one, 0.05) == pytest.approx((-share, share))
    low, high = paired_interval(one, one + 0.25, 0.05)
    assert (low, high) == pytest.approx((0.25 - share * 1.25, 0.25 + share * 0.75))
    many = np.full(10_000, 0.5)
    assert paired_interval(many, many, 0.05)[1] < 4e-4
