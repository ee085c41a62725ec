"""Compares the optimizer's updates of each parameter between candidate and reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align.curve import Floats
from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics
from ascendtune.check.align.tensor_noise import CERTAIN, unit_of
from ascendtune.check.align.tensor_row import TensorRow

_WELL_CONDITIONED = 0.1
"""An element's update is compared if the noise of its gradient changes it by at most this share."""


def update_rows(
    step: int,
    rank: int,
    reference: RankDump,
    candidate: RankDump,
    pairs: Mapping[TensorKey, tuple[TensorStatistics, TensorStatistics]],
    gradient_limits: Floats,
) -> list[TensorRow]:
    """Rows of the updates: the values that the optimizer added to each parameter.

    An optimizer such as Adam divides by the size of the gradient, so that the rounding of a gradient close to 0
    determines the sign of its update. Only elements whose gradient is known to a tenth are compared: the noise of the
    gradient, relative to the element's own gradient g, is nu = limit · rms(g) / |g|; its update may differ by
    nu · |update|, and by the rounding of the parameter itself, u · |parameter|. From the second step on, gradients of
    earlier steps contribute: if they cancel, the update is smaller than usual, and nu is larger by that factor. In the
    first step an element whose gradient is exactly 0 on both sides (LoRA's A, embeddings of tokens that do not occur)
    is changed by weight decay only, which has no noise.

    Args:
        gradient_limits: (tensors,), for those in `pairs`: how much the gradients may differ, relative.
    """
    rows = []
    changes: list[tuple[TensorKey, tuple[TensorStatistics, TensorStatistics], list[Floats], list[Floats], float]] = []
    befores, slopes_of = (
        [
            {key.name: each for key, each in side.tensors.items() if key.phase == phase}
            for side in (reference, candidate)
        ]
        for phase in ("parameter_before", "gradient")
    )
    for (key, pair), limit in zip(pairs.items(), gradient_limits, strict=True):
        before, gradients = ([side.get(key.name) for side in sides] for sides in (befores, slopes_of))
        if None in before or None in gradients or pair[0].shape != pair[1].shape:
            continue
        update = [np.subtract(after.samples, start.samples) for after, start in zip(pair, before, strict=True) if start]
        slopes = [np.array(each.samples) for each in gradients if each]
        if len({len(each) for each in (*update, *slopes)}) != 1:
            continue
        changes.append((key, pair, update, slopes, float(limit) * max(each.rms for each in gradients if each)))
    usual = _usual_update([[*update, *slopes] for _, _, update, slopes, _ in changes])
    for key, pair, update, slopes, noise_of_gradient in changes:
        values = [np.array(each.samples) for each in pair]
        starts = [after - added for after, added in zip(values, update, strict=True)]
        by_decay = (np.maximum(*map(np.abs, slopes)) == 0) & (step == 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = np.minimum(*map(np.abs, slopes))
            noise = noise_of_gradient / slope
            if step > 1:
                # Relative to the larger update: one side may not have updated the parameter at all.
                noise *= np.maximum(usual(slope) / np.maximum(*map(np.abs, update)), 1.0)
            # Decay is proportional to the weight, which one side may have rounded before.
            noise = np.where(by_decay, 2 * np.abs(starts[1] - starts[0]) / np.minimum(*map(np.abs, starts)), noise)
            known = np.isfinite(update[0]) & np.isfinite(update[1]) & (noise <= _WELL_CONDITIONED)
        # The unit of the finer dtype, so that parameters which one side keeps in a coarser dtype are reported; for
        # decay alone that of the coarser dtype, whose last digit may be larger than the decay.
        units = np.where(by_decay, max(map(unit_of, pair)), min(map(unit_of, pair)))
        rounding = 2 * CERTAIN * units * np.abs(values[0])
        # Compared separately: the noise of the other elements would hide an update by decay alone.
        parts = (known & ~by_decay, known & by_decay)
        found_in = [each for chosen in parts if (each := _difference_of(update, noise, rounding, chosen)) is not None]
        if found_in:
            difference, most, scale = next((each for each in found_in if each[0] > each[1]), found_in[0])
            rows.append(TensorRow(step, rank, key, *pair, difference, most, scale))
    return rows


def _difference_of(
    update: Sequence[Floats], noise: Floats, rounding: Floats, chosen: NDArray[np.bool_]
) -> tuple[float, float, float] | None:
    """For the `chosen` elements of two updates: the relative difference, its limit, and candidate over reference.

    None if neither side changed any of them. All arguments: (samples,), `update` of both sides.
    """
    one, other = update[0][chosen], update[1][chosen]
    largest = max(_norm(one), _norm(other))
    if not largest:
        return None
    most = math.hypot(_norm(noise[chosen] * one), _norm(rounding[chosen])) / largest
    return _norm(other - one) / largest, most, _norm(other) / _norm(one) if _norm(one) else math.nan


def _usual_update(changes: Sequence[Sequence[Floats]]) -> Callable[[Floats], Floats]:
    """A function from gradients, (samples,), to the sizes of updates in a step in which nothing cancels: (samples,).

    Adam's updates are as large as the largest of all parameters, whatever the gradient; those of SGD are proportional
    to the gradient. The smaller of the two is valid for either.

    Args:
        changes: for each parameter the updates of both sides, then their gradients, (samples,) each.
    """
    of_all = [np.abs(np.concatenate(each)) for each in zip(*changes, strict=True)] or [np.zeros(1)] * 4
    update, slope = (np.minimum(*of_all[at : at + 2]) for at in (0, 2))
    is_known = np.isfinite(update) & np.isfinite(slope) & (slope > 0)
    largest = float(update[is_known].max(initial=0.0))
    ratio = float((update[is_known] / slope[is_known]).max(initial=0.0))
    return lambda slopes: np.minimum(ratio * slopes, largest)


def _norm(values: Floats) -> float:
    return float(np.linalg.norm(values))
