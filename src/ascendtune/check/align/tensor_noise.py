"""Limits of the difference that rounding alone causes between tensors of two correct trainings.

A tensor is the result of n consecutive operations, each of which sums K products in fp32 (u32 = 2^-24), whatever the
dtype, and rounds its output to the unit u of its dtype. Partial sums of k terms have size sqrt(k), so that their
roundings add up to u32 · sqrt(1 + 2 + … + K) ≈ u32 · K / sqrt(2); relative to a result of size sqrt(K) this is
u32 · sqrt(K / 2). Roundings behave like independent random numbers (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 2.8). Two machines differ, relative to the root mean square of the tensor, by

    sigma = sqrt(2 · n · (u² + u32² · K / 2)).

n is the position of the tensor in the order of execution, an upper bound of the number of operations that lead to it.
Limits are four sigma. Errors of n elements of a tensor cancel in its norm, whose limit is 1/sqrt(n) of that, plus one
rounding for a scalar that scales all elements. Measurements are in docs/decisions/0016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ascendtune.check.align.curve import Floats
from ascendtune.check.align.dump import TensorStatistics

CERTAIN = 4.0
"""Standard deviations beyond which a difference is not attributed to rounding."""
_OF_GRADIENT = 0.25
"""Largest share of a gradient's limit that applies to the norm of 16 elements or more, whatever their sizes."""
UNIT_FP32 = 2.0**-24
REDUCED_PRODUCTS = 2.0**13
"""Factor of the limits of fp32 where a GPU's TF32 or an NPU's HF32 rounds the inputs of products to 11 bits."""
_UNITS = {
    "float64": 2.0**-53,
    "float32": UNIT_FP32,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
Pairs = Sequence[tuple[TensorStatistics, TensorStatistics]]
"""(reference, candidate) in the order of execution."""


@dataclass(frozen=True)
class ExtraNoise:
    """Sources of noise besides the rounding to the dtypes of tensors.

    Attributes:
        has_muon: whether a side's optimizer orthogonalises the updates of matrices in bf16.
        sends_bf16: whether ranks of a side round their gradients to bf16 before the reduction.
        after_update: factor by which each of the first updates widens the limits.
        product_unit: rounding unit of TF32 or HF32 if a side rounds fp32 inputs of products to it: dtypes of tensors do
            not show that. Else 0.
        has_experts: whether a router sends tokens to experts; 16-bit rounding sends some tokens to other experts.
    """

    has_muon: bool = False
    sends_bf16: bool = False
    after_update: float = 1.0
    product_unit: float = 0.0
    has_experts: bool = False


NO_EXTRA_NOISE = ExtraNoise()


def is_float(tensor: TensorStatistics) -> bool:
    """Whether its dtype is a floating-point type; any shape."""
    return "float" in tensor.dtype


def unit_of(tensor: TensorStatistics) -> float:
    """Rounding unit u of its dtype, any shape; 0 for integers, 2^-8 for an unknown dtype."""
    return _UNITS.get(tensor.dtype, 2.0**-8) if is_float(tensor) else 0.0


def limits(pairs: Pairs, *, operations_before: int = 0, reduction: int = 1, unit: float | Floats = 0.0) -> Floats:
    """Limits of relative differences in the order of execution.

    Args:
        operations_before: number of operations that lead to the first of `pairs`.
        reduction: number of terms of the longest sum before.
        unit: the largest rounding unit before; or (pairs,) that of the inputs of each of `pairs`.

    Returns:
        (pairs,) float64; 0 for integers.
    """
    units = np.array([max(unit_of(one), unit_of(other)) for one, other in pairs], dtype=np.float64)
    longest = np.array([max(one.shape, default=1) for one, _ in pairs], dtype=np.float64)
    position = operations_before + 1 + np.arange(len(pairs))
    coarsest = np.maximum.accumulate(np.maximum(units, unit)) if len(units) else units
    terms = np.maximum(np.maximum.accumulate(longest), reduction) if len(units) else longest
    sigma = np.sqrt(2 * position * (coarsest**2 + UNIT_FP32**2 * terms / 2))
    return np.asarray(np.where(units > 0, CERTAIN * sigma, 0.0))


def differences_in_any_order(pairs: Pairs) -> Floats:
    """(pairs,) float64: the relative differences of the statistics that do not depend on the order of the values."""
    return differences([(one._replace(samples=(), digest=""), other._replace(samples=())) for one, other in pairs])


def differences(pairs: Pairs) -> Floats:
    """Relative differences from the statistics.

    The largest of: the difference of the samples (root mean square), of mean and of L2 norm, relative to the larger
    root mean square; and of minimum and maximum, relative to the larger absolute value. Infinite if only one side has
    NaN or infinite elements; 0 if the bytes are the same; NaN if the shapes differ.

    Returns:
        (pairs,) float64.
    """
    if not pairs:
        return np.empty(0)
    most = max(len(each.samples) for pair in pairs for each in pair)
    sides = [_columns([pair[side] for pair in pairs], most) for side in (0, 1)]
    one, other = sides
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        errors = one["samples"] - other["samples"]
        known = np.isfinite(errors)
        count = np.maximum(known.sum(axis=1), 1)
        sampled = np.sqrt(np.where(known, errors**2, 0).sum(axis=1) / count)
        size = np.fmax(one["rms"], other["rms"])
        for each in sides:
            size = np.fmax(size, np.sqrt(np.where(known, each["samples"] ** 2, 0).sum(axis=1) / count))
        largest = np.fmax.reduce([np.abs(each[name]) for each in sides for name in ("lowest", "highest")])
        parts = [
            np.where(size > 0, sampled / size, 0.0),
            np.where(size > 0, np.abs(one["mean"] - other["mean"]) / size, 0.0),
            np.where(size > 0, np.abs(one["rms"] - other["rms"]) / size, 0.0),
            *(np.where(largest > 0, np.abs(one[name] - other[name]) / largest, 0.0) for name in ("lowest", "highest")),
        ]
    # Tensors without a finite number on either side count as equal.
    relative = np.nan_to_num(np.fmax.reduce(parts), nan=0.0, posinf=np.inf)
    # Counts are compared as zero or not, because some writers record only whether there are any.
    relative[((one["nan"] > 0) != (other["nan"] > 0)) | ((one["inf"] > 0) != (other["inf"] > 0))] = np.inf
    for index, (reference, candidate) in enumerate(pairs):
        if reference.digest and reference.digest == candidate.digest:
            relative[index] = 0.0
        elif reference.shape != candidate.shape:
            relative[index] = np.nan
    return np.asarray(relative)


def with_norms(
    pairs: Pairs, relative: Floats, most: Floats, unit: float, *, of_gradients: bool
) -> tuple[Floats, Floats]:
    """Differences `relative` and their limits `most`, (pairs,) float64; those of the norms if only these differ.

    Args:
        unit: the largest rounding unit of the step.
        of_gradients: whether these are gradients of parameters, which are sums over the tokens.
    """
    rms = np.array([(one.rms, other.rms) for one, other in pairs], dtype=np.float64).reshape(-1, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        of_norms = np.abs(rms[:, 0] - rms[:, 1]) / rms.max(axis=1)
    share = np.array([max(map(_share_of_norm, pair)) for pair in pairs], dtype=np.float64)
    if of_gradients:
        count = np.array([max(one.numel, 1) for one, _ in pairs], dtype=np.float64)
        share = np.minimum(share, np.maximum(_OF_GRADIENT, count**-0.5))
    coarsest = np.maximum(unit, [max(map(unit_of, pair)) for pair in pairs]) if len(pairs) else share
    # A scalar that one side rounds, such as a scale, changes all elements alike; noise adds its own energy.
    limit = np.minimum(share * most + coarsest + (most / CERTAIN) ** 2, most)
    alone = (relative <= most) & (of_norms > limit)
    return np.where(alone, of_norms, relative), np.where(alone, limit, most)


def _share_of_norm(tensor: TensorStatistics) -> float:
    """The factor from the relative error of the elements of a tensor, of any shape, to that of its norm.

    1/sqrt(n) for n elements of equal size with independent errors. One element may dominate the norm, with the share
    max² / norm², so that n is at most the inverse of that. An error of a weight is the same in all vectors, so that n
    is at most the last dimension.
    """
    largest = max(abs(tensor.lowest), abs(tensor.highest))
    count = min(tensor.shape[-1:] or (1,))
    equal = (tensor.l2 / largest) ** 2 if largest > 0 and math.isfinite(tensor.l2) else 1.0
    return 1 / math.sqrt(max(1.0, min(count, equal)))


def _columns(tensors: Sequence[TensorStatistics], most: int) -> dict[str, Floats]:
    """(tensors,) float64 by name; `samples` (tensors, most), padded with NaN."""
    blank = (np.nan,) * most
    columns = {
        name: np.array([getattr(each, name) for each in tensors], dtype=np.float64)
        for name in ("lowest", "highest", "mean", "rms", "nan", "inf")
    }
    columns["samples"] = np.array([each.samples + blank[len(each.samples) :] for each in tensors], dtype=np.float64)
    return columns
