"""Two loss curves, aligned to the same steps.

A record of `logging_steps: 10` may be the mean over the last ten steps (transformers' Trainer, LLaMA-Factory), the
mean over their labelled tokens (runs of ascendtune), or the loss of the tenth step only (many scripts). A log often
does not specify which.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align.curve import Curve, Floats, Reading

Steps = NDArray[np.int64]


@dataclass(frozen=True)
class PairedLosses:
    """The losses of two curves over the same steps.

    Attributes:
        begins, steps: (records,) int64: a record covers the steps begins + 1 to steps.
        reference, candidate: (records,) float64 losses.
        reference_alone, candidate_alone: (other records,) int64, steps of one curve that were not compared because the
            other curve has no loss for them.
        readings: assumed meaning of a record of each curve; None if it has a record of every step.
        is_certain: False if the difference may come from different kinds of means, so that it proves nothing.
    """

    begins: Steps
    steps: Steps
    reference: Floats
    candidate: Floats
    reference_alone: Steps
    candidate_alone: Steps
    readings: tuple[Reading | None, Reading | None] = (None, None)
    is_certain: bool = True

    @property
    def difference(self) -> Floats:
        """(records,) float64: |candidate - reference| / max(|reference|, 1); NaN if one side has no number.

        A loss is a difference of logits, whose error does not decrease with the loss: below 1 the difference is
        absolute.
        """
        return np.abs(self.signed)

    @property
    def signed(self) -> Floats:
        """(records,) float64: the same with its sign, positive if the candidate's loss is larger."""
        return (self.candidate - self.reference) / np.maximum(np.abs(self.reference), 1.0)

    @property
    def relative(self) -> Floats:
        """(records,) float64: |candidate - reference| / |reference|, as in acceptance rules of other projects."""
        return np.abs(self.candidate - self.reference) / np.maximum(np.abs(self.reference), 1e-12)

    def without_losses(self) -> PairedLosses:
        """The same pair without compared steps."""
        none, ends = np.empty(0), np.empty(0, dtype=np.int64)
        alone = (self.reference_alone, self.steps), (self.candidate_alone, self.steps)
        return replace(
            self,
            begins=ends,
            steps=ends,
            reference=none,
            candidate=none,
            reference_alone=np.union1d(*alone[0]),
            candidate_alone=np.union1d(*alone[1]),
        )

    @property
    def without_numbers(self) -> Steps:
        """(steps,) int64: steps whose loss is NaN, infinite or not recorded on both sides."""
        return self.steps[~np.isfinite(self.reference) & ~np.isfinite(self.candidate)]

    @property
    def is_single(self) -> NDArray[np.bool_]:
        """(records,) whether a record covers a single step."""
        return np.asarray(self.steps - self.begins == 1)


def pair_losses(reference: Curve, candidate: Curve) -> PairedLosses:
    """Losses over the steps that both sides recorded.

    Records of shorter windows are averaged over the windows of the other curve: unweighted, as transformers' Trainer
    does, or by labelled tokens, as in runs of ascendtune. If a log has several possible readings, the one that fits
    best is used: under a wrong reading the curves differ far more than by rounding.
    """
    one, other = (curve.readings if curve.is_sparse() else (None,) for curve in (reference, candidate))
    pairs = [_paired(reference, candidate, *each) for each in product(one, other) if None in each or each[0] == each[1]]
    # If no reading fits both curves, the first of each is used.
    pairs = pairs or [_paired(reference, candidate, one[0], other[0])]
    return min(pairs, key=_misfit)


def _misfit(pair: PairedLosses) -> tuple[bool, bool, float]:
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        # nanmedian warns if all values are NaN.
        difference = float(np.nanmedian(pair.difference)) if len(pair.steps) else np.nan
    return not len(pair.steps), not pair.is_certain, difference if np.isfinite(difference) else np.inf


class _Windows:
    """A curve under one reading, with the steps that each record covers.

    Attributes:
        edges: int64, ascending: the last steps before the windows, and the last steps of the windows.
    """

    def __init__(self, curve: Curve, reading: Reading | None, *, by_tokens: bool) -> None:
        self.steps, self.losses = curve.steps, curve.losses
        self.begins = self.steps - 1
        if reading in ("steps", "tokens"):
            # The steps before the first record may belong to an attempt whose log is lost.
            usual = int(np.median(np.diff(self.steps))) if len(self.steps) > 1 else int(self.steps[0])
            first = 0 if curve.is_whole else min(max(0, int(self.steps[0]) - usual), int(self.steps[0]) - 1)
            self.begins = np.concatenate(([first], self.steps[:-1]))
        self.edges = np.union1d(self.begins, self.steps)
        lengths = self.steps - self.begins
        # A single NaN would propagate into every later sum.
        is_number = np.isfinite(self.losses)
        weights = np.where(is_number, curve.weights if by_tokens else lengths, 0.0)
        self._lengths, self._numbers = _summed(lengths), _summed(is_number)
        self._totals, self._sums = _summed(weights), _summed(np.where(is_number, self.losses, 0.0) * weights)

    def means(self, lows: Steps, highs: Steps) -> tuple[Floats, NDArray[np.bool_]]:
        """The loss over the steps lows + 1 to highs, (intervals,) each, and whether all of them were recorded."""
        first, end = (np.searchsorted(self.steps, each, side="right") for each in (lows, highs))
        is_whole = self._lengths[end] - self._lengths[first] == highs - lows
        is_one, count = end - first == 1, self._numbers[end] - self._numbers[first]
        total = self._totals[end] - self._totals[first]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = (self._sums[end] - self._sums[first]) / total
        # The loss of a single record is taken unchanged, even NaN: the quotient of sums would lose its last digit.
        losses = np.where(is_one, self.losses[np.minimum(first, len(self.losses) - 1)], mean)
        return losses, is_whole & (is_one | ((count == end - first) & (total > 0)))

    def alone(self, lows: Steps, highs: Steps) -> Steps:
        """Steps of the records outside of the intervals, which do not overlap: (intervals,) each."""
        interval = np.searchsorted(highs, self.steps, side="left")
        is_inside = np.append(lows, np.iinfo(np.int64).max)[interval] < self.steps
        return self.steps[~is_inside]


def _paired(reference: Curve, candidate: Curve, one: Reading | None, other: Reading | None) -> PairedLosses:
    by_tokens = "tokens" in (one, other)
    has_tokens = [bool(np.isfinite(each.weights).all()) for each in (reference, candidate)]
    first, second = (
        _Windows(curve, reading, by_tokens=by_tokens and known)
        for curve, reading, known in ((reference, one, has_tokens[0]), (candidate, other, has_tokens[1]))
    )
    edges = np.intersect1d(first.edges, second.edges, assume_unique=True)
    lows, highs = edges[:-1], edges[1:]
    (losses, is_whole), (others, is_whole_too) = (each.means(lows, highs) for each in (first, second))
    kept = is_whole & is_whole_too
    lows, highs = lows[kept], highs[kept]
    return PairedLosses(
        lows,
        highs,
        losses[kept],
        others[kept],
        first.alone(lows, highs),
        second.alone(lows, highs),
        (one, other),
        _is_certain(reference, candidate, one, other, has_tokens),
    )


def _is_certain(
    reference: Curve, candidate: Curve, one: Reading | None, other: Reading | None, has_tokens: list[bool]
) -> bool:
    """Whether identical trainings have identical numbers under these readings."""
    if one is None or other is None:
        # Any mean can be computed from single steps; one over tokens requires their numbers.
        single = 0 if one is None else 1
        return "tokens" not in (one, other) or has_tokens[single]
    if reference.readings != candidate.readings:
        return False
    if np.array_equal(reference.steps, candidate.steps):
        return True
    return len(reference.readings) == 1 and (one != "tokens" or all(has_tokens))


def _summed(values: NDArray[Any]) -> NDArray[Any]:
    """(records + 1,) sums of (records,) values up to each record."""
    return np.concatenate(([0], np.cumsum(values)))
