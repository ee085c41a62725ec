"""Differences of losses that begin as rounding and that an unstable training amplifies.

Above a learning rate that depends on the curvature, a training is unstable (Cohen et al. 2021, arXiv:2103.00065):
each step multiplies a difference of the weights, until two copies of it differ by as much as the training's own losses
go up and down. A fault makes a difference in the first updates, or from one record to the next, or one that adds up
with the updates and grows with a power of the steps, at most the third (in the optimizer, during a linear warm-up). So
a difference beyond the limits is taken for amplified rounding only where

- the first eight records agree within rounding, but for what rounding of the updates makes of the changes of the loss;
- no difference is larger than the largest rise of the reference's loss above an earlier one; and
- it grows by more than a power of the steps allows. This takes decades between rounding and the size of the losses'
  own jumps, which 16 bits leave no room for: there it is not asked for.

The loss shows a random projection of the difference of the weights: where that is small once, the next one seems to
have jumped. So the largest growth from one record to the next does not count.
"""

from __future__ import annotations

import numpy as np

from ascendtune.check.align.curve import Floats
from ascendtune.check.align.loss_noise import LossNoise
from ascendtune.check.align.paired_losses import PairedLosses

_FIRST = 8
"""Records in which a fault of the port would show."""
_STEEPEST = 3
"""Power of the steps with which the difference that a fault makes grows at most."""
_JUMP = 10.0
"""Growth from one record to the next above which it is not gradual."""


def is_amplified(pair: PairedLosses, noise: LossNoise, beyond: int) -> bool:
    """Whether the difference at record `beyond`, the first that rounding alone does not explain, is such a one."""
    difference = np.nan_to_num(pair.difference)
    explained = noise.band(pair.steps) + noise.update * _largest_change(pair.reference)
    if len(difference) <= _FIRST or (difference > explained)[:_FIRST].any():
        return False
    if difference.max() > _largest_rise(pair.reference):
        return False
    if noise.dtype != "fp32":
        return True
    largest = np.maximum.accumulate(np.maximum(difference, noise.loss))
    return _outgrows_powers(largest, beyond) or _grows_gradually(largest[: beyond + 1])


def _largest_change(losses: Floats) -> Floats:
    """(records,) by how much two of `losses`, (records,), up to each record differ, in the units of differences."""
    known = np.isfinite(losses)
    highest = np.maximum.accumulate(np.where(known, losses, -np.inf))
    lowest = np.minimum.accumulate(np.where(known, losses, np.inf))
    with np.errstate(invalid="ignore"):
        change = (highest - lowest) / np.maximum(np.abs(losses), 1.0)
    return np.asarray(np.nan_to_num(change, nan=0.0, posinf=0.0, neginf=0.0))


def _largest_rise(losses: Floats) -> float:
    """By how much one of `losses`, (records,), is above an earlier one, in the units of their differences."""
    known = losses[np.isfinite(losses)]
    lowest = np.minimum.accumulate(known)
    return float(((known - lowest) / np.maximum(np.abs(lowest), 1.0)).max(initial=0.0))


def _outgrows_powers(largest: Floats, beyond: int) -> bool:
    """Whether the difference is, at `beyond` or later, larger than that of a fault that began where it left rounding.

    Args:
        largest: (records,) the largest difference so far, at least that of rounding.
    """
    start = int(np.flatnonzero(largest[: beyond + 1] == largest[0])[-1])
    factors = largest[start + 1 :] / largest[start:-1]
    grown = np.cumprod(factors) / np.maximum.accumulate(factors)
    powers = np.arange(1, len(factors) + 1) ** _STEEPEST
    return bool((grown > powers)[max(beyond - start - 1, 0) :].any())


def _grows_gradually(largest: Floats) -> bool:
    """Whether the second half of the records has more growth than a power of the steps since the first one.

    Args:
        largest: (records,) as above.
    """
    factors = largest[1:] / largest[:-1]
    half = len(largest) // 2
    grown = largest[-1] / largest[half]
    return bool(factors.max() <= _JUMP and grown >= 2 * factors[half:].max() and grown > 2**_STEEPEST)
