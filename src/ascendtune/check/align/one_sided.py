"""Differences of the same sign over many steps, each of which is within rounding.

Rounding errors have no sign: from step to step, with different rows, the losses of one side are sometimes above and
sometimes below those of the other, however far a chaotic training has moved the weights apart. A fault, such as a
learning rate that is 2 % off, shifts all of them in one direction. So the records are cut into eight blocks. The mean
of a block is significant if it is three standard errors from 0, and a difference has a direction if six of eight blocks
are significant with the same sign. Rounding is biased, too: the expected logarithm of a perturbed softmax is shifted,
and weights that are rounded on one side stay the same. The mean of all records must therefore exceed

    bias + 4 · sigma / sqrt(records)

with the bias and the sigma of a single record (`loss_noise.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ascendtune.check.align.curve import Curve, Floats
from ascendtune.check.align.language import percent, say
from ascendtune.check.align.loss_noise import LossNoise
from ascendtune.check.align.paired_losses import PairedLosses
from ascendtune.check.align.record_phrases import without_reduced_products
from ascendtune.check.align.training_record import REDUCED
from ascendtune.check.finding import Finding, failure, warning

_BLOCKS = 8
_AGREEING = 6
"""Number of blocks: all except those before the difference has grown."""
_STANDARD_ERRORS = 3.0
_FEWEST = 40
"""Number of records: five in each block."""


@dataclass(frozen=True)
class OneSided:
    """A difference of the same sign over many steps.

    Attributes:
        mean: of candidate minus reference, relative, over the records from `first` on.
        limit: largest mean that rounding explains.
        blocks: number of the eight blocks whose mean is significant with the sign of `mean`.
        first: position of the first record of the first of these blocks.
    """

    mean: float
    limit: float
    blocks: int
    first: int


def one_sided_losses(pair: PairedLosses, noise: LossNoise) -> OneSided | None:
    """The losses of the candidate if they are on one side; None if they are not, or if it cannot be determined."""
    if not pair.is_certain or noise.measured is not None or noise.amplifies:
        return None
    return _one_sided(pair.signed, noise.loss, noise.bias)


def one_sided_norms(reference: Curve, candidate: Curve, noise: LossNoise) -> OneSided | None:
    """The same for the logarithms of the gradient norms at the steps that both sides have."""
    if noise.measured is not None or noise.amplifies:
        return None
    _, first, second = np.intersect1d(reference.steps, candidate.steps, assume_unique=True, return_indices=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(candidate.grad_norms[second] / reference.grad_norms[first])
    # Errors of a gradient's elements cancel in its norm, as in those of single parameters.
    return _one_sided(np.where(np.isfinite(ratio), ratio, np.nan), noise.grad_norm / 4 + noise.bias, noise.bias)


def _one_sided(values: Floats, limit: float, bias: float) -> OneSided | None:
    """The difference over all records, else over the second half: (records,) signed differences, NaN if unknown.

    Args:
        limit: for one record; `bias` is the part of it that a mean does not reduce.
    """
    half = len(values) // 2
    one_sided = _in(values, limit, bias)
    if one_sided is None and (one_sided := _in(values[half:], limit, bias)) is not None:
        return OneSided(one_sided.mean, one_sided.limit, one_sided.blocks, one_sided.first + half)
    return one_sided


def _in(values: Floats, limit: float, bias: float) -> OneSided | None:
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < _FEWEST:
        return None
    most = bias + (limit - bias) / math.sqrt(len(known))
    mean = float(values[known].mean())
    blocks = np.array_split(known, _BLOCKS)
    means = np.array([values[block].mean() for block in blocks])
    errors = np.array([values[block].std(ddof=1) / math.sqrt(len(block)) for block in blocks])
    beyond = np.flatnonzero((np.abs(means) > _STANDARD_ERRORS * errors) & (np.sign(means) == np.sign(mean)))
    if abs(mean) <= most or len(beyond) < _AGREEING:
        return None
    return OneSided(mean, most, len(beyond), int(blocks[beyond[0]][0]))


def losses_lie_on_one_side(
    difference: OneSided, measured: str, remedy: str, evidence: tuple[str, ...], *, is_proof: bool
) -> Finding:
    """Finding 7 if each loss is within rounding and their mean is not.

    Args:
        measured: what else the curves show.
        is_proof: whether both sides are known to record the same mean over tokens.
    """
    return (failure if is_proof else warning)(
        "later",
        say(
            "{measured}; each is within rounding, but those of the candidate are {mean} higher on average"
            if difference.mean > 0
            else "{measured}; each is within rounding, but those of the candidate are {mean} lower on average",
            measured=measured,
            mean=percent(abs(difference.mean)),
        ),
        expected=say("at most {limit} on average: rounding errors have no sign", limit=percent(difference.limit)),
        remedy=remedy,
        evidence=(
            say(
                "in {blocks} of 8 blocks of steps the mean is beyond chance, on the same side", blocks=difference.blocks
            ),
            *evidence,
        ),
    )


def norms_lie_on_one_side(difference: OneSided) -> Finding:
    """Finding 5 if the gradient norms of many steps differ in the same direction."""
    return warning(
        "backward",
        say(
            "each gradient norm is within rounding, but those of the candidate are {mean} larger on average"
            if difference.mean > 0
            else "each gradient norm is within rounding, but those of the candidate are {mean} smaller on average",
            mean=percent(abs(difference.mean)),
        ),
        expected=say("at most {limit} on average: rounding errors have no sign", limit=percent(difference.limit)),
        remedy=dump_remedy(),
        evidence=(
            say(
                "in {blocks} of 8 blocks of steps the mean is beyond chance, on the same side", blocks=difference.blocks
            ),
        ),
    )


def hidden_by_rounding(noise: LossNoise, records: int, *, has_dumps: bool) -> str:
    """A sentence on the differences that a comparison without findings cannot exclude."""
    remedy = say("dump the first steps with precision=fp32") if has_dumps else dump_remedy()
    if noise.dtype in REDUCED:
        remedy = without_reduced_products()
    return say(
        "{dtype} rounding hides faults that change single losses by less than {loss} and their mean by less than "
        "{mean}; to find smaller ones: {remedy}",
        dtype=noise.dtype,
        loss=percent(noise.loss),
        mean=percent(noise.bias + (noise.loss - noise.bias) / math.sqrt(records)),
        remedy=remedy,
    )


def dump_remedy() -> str:
    """The remedy if bf16 hides the place of a difference."""
    return say(
        "dump the first steps on both sides (ascendtune train recipe.yaml --dump-steps 1-3, or ascendtune align "
        "record --steps 1-3 -- COMMAND); if they show no difference, repeat this with precision=fp32"
    )
