"""Intervals of the mean difference of paired scores that are valid for few items, too.

Scores that are 0 or 1: of n items, b were won and c were lost by the candidate, d = b + c. The difference of the two
shares is q · (2·theta - 1), where q is the probability that an item differs and theta the probability that the
candidate wins one that differs. Both get the exact binomial interval (Clopper and Pearson, 1934, Biometrika 26,
404-413): theta with 9/10 of the level, from b of d items, and q with 1/10 of it, from d of n. By Bonferroni's
inequality the interval of the product covers the true value with at least the stated probability, for every n. It
contains 0 unless McNemar's exact test (McNemar, 1947, Psychometrika 12, 153-157) rejects at 9/10 of the level.

Other scores: the wider of the percentile bootstrap and Student's interval; the bootstrap alone is too narrow for few
items. If all differences are equal, neither can estimate their variance: then an unseen item may differ by any amount
that the range of the scores permits, with a probability of at most 1 - (level / 2)^(1 / n), since n items did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ascendtune.check.align.curve import Floats

_RESAMPLES = 10_000
_SEED = 0
_CELLS_AT_ONCE = 1 << 22
_BISECTIONS = 60
_MOST_TERMS = 10_000
_PRECISION = 1e-14
_TINY = 1e-300


def paired_interval(reference: Floats, candidate: Floats, level: float) -> tuple[float, float]:
    """The interval of the mean of candidate minus reference.

    Args:
        reference, candidate: (items,) float64, scores of the same items; at least one.
        level: probability outside the interval.
    """
    both = np.concatenate([reference, candidate])
    differences = candidate - reference
    if np.isin(both, (0.0, 1.0)).all():
        return exact_interval(len(reference), int((differences > 0).sum()), int((differences < 0).sum()), level)
    if np.ptp(differences) == 0:
        low, high = (0.0, 1.0) if both.min() >= 0 and both.max() <= 1 else (float(both.min()), float(both.max()))
        span, common = high - low, float(differences[0])
        share = 1 - (level / 2) ** (1 / len(differences))
        return common - share * (span + common), common + share * (span - common)
    intervals = bootstrap_interval(differences, level), student_interval(differences, level)
    return min(each[0] for each in intervals), max(each[1] for each in intervals)


def exact_interval(items: int, won: int, lost: int, level: float) -> tuple[float, float]:
    """The interval of the difference of two shares, for `items` paired items that are right or wrong."""
    low, high = binomial_interval(won, won + lost, 0.9 * level)
    least, most = binomial_interval(won + lost, items, 0.1 * level)
    below, above = 2 * low - 1, 2 * high - 1
    return below * (most if below < 0 else least), above * (most if above > 0 else least)


def binomial_interval(successes: int, trials: int, level: float) -> tuple[float, float]:
    """Clopper and Pearson's interval of a probability; all of [0, 1] without a trial."""
    low, high = 0.0, 1.0
    if successes > 0:
        # P(X >= k | p) = I_p(k, n - k + 1), DLMF 8.17.5.
        low = _root(lambda p: beta_ratio(p, successes, trials - successes + 1) - level / 2)
    if successes < trials:
        high = _root(lambda p: beta_ratio(p, successes + 1, trials - successes) - (1 - level / 2))
    return low, high


def student_interval(differences: Floats, level: float) -> tuple[float, float]:
    """Student's interval of the mean of (items,) float64; at least two."""
    count = len(differences)
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(count)
    half = student_quantile(level, count - 1) * error
    return mean - half, mean + half


def student_quantile(level: float, freedom: int) -> float:
    """t with P(|T| > t) = level, where T has `freedom` degrees of freedom."""
    # P(|T| > t) = I_x(freedom / 2, 1 / 2) with x = freedom / (freedom + t^2).
    x = _root(lambda x: beta_ratio(x, freedom / 2, 0.5) - level)
    return math.sqrt(freedom * (1 - x) / max(x, _TINY))


def bootstrap_interval(differences: Floats, level: float) -> tuple[float, float]:
    """The percentile interval of the mean (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13).

    Args:
        differences: (items,) float64, candidate minus reference.
        level: probability outside the interval.
    """
    draw = np.random.default_rng(_SEED)
    values, counts = np.unique(differences, return_counts=True)
    size = len(differences)
    # How often each value is drawn is multinomial: the same distribution as drawing items one by one.
    chunk = max(1, _CELLS_AT_ONCE // len(values))
    means = [
        draw.multinomial(size, counts / size, size=min(chunk, _RESAMPLES - begin)) @ values / size
        for begin in range(0, _RESAMPLES, chunk)
    ]
    low, high = np.quantile(np.concatenate(means), [level / 2, 1 - level / 2])
    return float(low), float(high)


def beta_ratio(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        # The fraction converges fast on the other side only (DLMF 8.17.4).
        return 1 - beta_ratio(1 - x, b, a)
    logarithm = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    # Lentz's method: the ratios of successive numerators and denominators of 1 + d1 / (1 + d2 / (1 + ...)).
    fraction, numerators, denominators = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            coefficient = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominators = 1 / ((1 + coefficient * denominators) or _TINY)
        numerators = (1 + coefficient / numerators) or _TINY
        fraction *= numerators * denominators
        if abs(numerators * denominators - 1) < _PRECISION:
            break
    return math.exp(logarithm) / (a * fraction)


def _root(function: Callable[[float], float]) -> float:
    """The zero of an increasing function on [0, 1], by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
