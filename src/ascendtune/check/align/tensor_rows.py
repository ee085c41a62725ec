"""Tensors of one step and rank, reference beside candidate, with their difference and its limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ascendtune.check.align.curve import Floats
from ascendtune.check.align.dump import Key, RankDump, Tensor, read_values
from ascendtune.check.align.tensor_noise import CERTAIN, UNIT_FP32, Pairs, differences, is_float, limits, unit_of

_GROWTH = 0.5
"""Share of the limit that every further step adds, as for losses: weights have parted by rounding before."""
_WELL_CONDITIONED = 0.1
"""An element's update is compared where the noise of its gradient changes it by at most this share."""
_REPLICA_OPERATIONS = 64
"""Operations that ranks may round differently before their replicas differ by more; the bits should be equal."""
_EMBEDDINGS = ("Embedding", "Gemma3TextScaledWordEmbedding", "VocabParallelEmbedding")
_STAGES = {
    "parameter_before": "start",
    "forward": "forward",
    "loss": "forward",
    "backward": "backward",
    "gradient": "backward",
    "parameter_after": "update",
}


@dataclass(frozen=True)
class Row:
    """One tensor on both sides.

    Attributes:
        difference: relative, as `tensor_noise.differences` defines it; of updates the difference of what the optimizer
            added; NaN where the shapes differ.
        limit: from rounding.
        scale: candidate over reference of the L2 norms; of updates by the samples.
    """

    step: int
    rank: int
    key: Key
    reference: Tensor
    candidate: Tensor
    difference: float
    limit: float
    scale: float

    @property
    def is_parted(self) -> bool:
        return self.difference > self.limit

    @property
    def stage(self) -> str:
        """The stage that this tensor is evidence for.

        Whole numbers that go into the model are its data, and so is what the embedding makes of them: its weights are
        compared as parameters.
        """
        if self.key.phase == "parameter_before" and self.step > 1:
            # The updates before it are what made it.
            return "update"
        if self.key.phase == "forward" and (not is_float(self.reference) or self.reference.kind in _EMBEDDINGS):
            return "data"
        return _STAGES[self.key.phase]

    @property
    def excess(self) -> float:
        """Difference over limit; 0 where there is nothing to compare."""
        if not self.difference > 0:
            return 0.0
        return self.difference / self.limit if self.limit else math.inf


def rows_of(step: int, rank: int, reference: RankDump, candidate: RankDump, *, with_modules: bool) -> list[Row]:
    """Rows of all tensors that both sides have, in the order of execution of the reference.

    Args:
        with_modules: also outputs of modules and their gradients, which are those of a rank's own rows.
    """
    groups: dict[tuple[str, int | None], dict[Key, tuple[Tensor, Tensor]]] = {}
    for key, tensor in reference.tensors.items():
        if (other := candidate.tensors.get(key)) is not None:
            groups.setdefault((key.phase, key.micro_batch), {})[key] = tensor, other
    growth = 1 + _GROWTH * (step - 1)
    forward = {batch: [*found.values()] for (phase, batch), found in groups.items() if phase == "forward"}
    modules = [pair for pairs in forward.values() for pair in pairs]
    unit = max((unit_of(each) for pair in modules for each in pair), default=0.0)
    tokens = max((each.numel // each.shape[-1] for each, _ in modules if each.numel and each.shape), default=1)
    operations = max(map(len, forward.values()), default=len(reference.tensors))
    drift = CERTAIN * _drift(groups) if step > 1 else 0.0
    rows: list[Row] = []
    for (phase, _), found in groups.items():
        pairs = [*found.values()]
        of_gradients = growth * limits(pairs, operations_before=2 * operations, reduction=tokens, unit=unit)
        if phase == "parameter_after":
            rows += _updates(step, rank, reference, candidate, found, of_gradients)
            continue
        if phase == "parameter_before":
            if step > 1:
                continue  # Compared as updates.
            most = np.array([_storage_limit(*pair) for pair in pairs])
        elif phase == "forward":
            # After the first step the weights have learnt from gradients of the coarsest dtype.
            most = growth * limits(pairs, unit=unit if step > 1 else 0.0)
        elif phase in ("loss", "backward"):
            most = growth * limits(pairs, operations_before=operations, unit=unit)
        else:
            most = of_gradients
        if with_modules or phase in ("gradient", "parameter_before"):
            rows += _rows(step, rank, [*found], pairs, _measured(reference, candidate, pairs), np.hypot(most, drift))
    return rows


def _drift(groups: Mapping[tuple[str, int | None], Mapping[Key, tuple[Tensor, Tensor]]]) -> float:
    """The largest relative difference of a matrix of weights before the step, where updates are compared, too.

    Earlier updates have agreed within rounding: what is left of it in the weights shows in all that they compute.
    """
    if ("parameter_after", None) not in groups:
        return 0.0
    matrices = [pair for pair in groups.get(("parameter_before", None), {}).values() if len(pair[0].shape) > 1]
    found = differences(matrices)
    return float(found[np.isfinite(found)].max(initial=0.0))


def rows_of_pair(step: int, rank: int, key: Key, reference: Tensor, candidate: Tensor) -> list[Row]:
    """The row of a tensor, of any shape, that must be equal."""
    pairs = [(reference, candidate)]
    return _rows(step, rank, [key], pairs, differences(pairs), np.zeros(1))


def replica_rows(step: int, key: Key, common: Tensor, odd: Mapping[int, Tensor]) -> list[Row]:
    """Rows of one tensor, of any shape, of several ranks beside the one that most ranks hold."""
    pairs = [(common, each) for each in odd.values()]
    most = limits(pairs, operations_before=_REPLICA_OPERATIONS)
    found = differences(pairs)
    return [
        row
        for at, rank in enumerate(odd)
        for row in _rows(step, rank, [key], pairs[at : at + 1], found[at:], most[at:])
    ]


def _rows(step: int, rank: int, keys: Sequence[Key], pairs: Pairs, found: Floats, most: Floats) -> list[Row]:
    return [
        Row(step, rank, key, *pair, float(difference), float(limit), _scale(*pair))
        for key, pair, difference, limit in zip(keys, pairs, found, most, strict=False)
    ]


def _scale(reference: Tensor, candidate: Tensor) -> float:
    return candidate.l2 / reference.l2 if reference.l2 > 0 else math.nan


def _storage_limit(reference: Tensor, candidate: Tensor) -> float:
    """Of weights that were loaded: equal bits, or those of the coarser dtype.

    Statistics alone were summed up in fp32, in pairs (Higham 2002, section 4.2): log2(n) roundings.
    """
    if reference.dtype != candidate.dtype:
        return 2 * max(unit_of(reference), unit_of(candidate))
    if reference.samples and candidate.samples:
        return 0.0
    return CERTAIN * UNIT_FP32 * math.log2(max(2, reference.numel))


def _measured(reference: RankDump, candidate: RankDump, pairs: Pairs) -> Floats:
    """(pairs,) float64: differences, of whole tensors where both sides wrote them."""
    found = differences(pairs)
    if reference.values is None or candidate.values is None:
        return found
    for index, (one, other) in enumerate(pairs):
        if found[index] == 0 or not math.isfinite(found[index]):
            continue
        values = read_values(reference, one), read_values(candidate, other)
        if values[0] is not None and values[1] is not None and len(values[0]) == len(values[1]):
            apart = (values[1] - values[0])[np.isfinite(values[0]) & np.isfinite(values[1])]
            size = max(one.rms, other.rms)
            exact = math.sqrt(float(np.mean(apart**2))) / size if len(apart) and size else 0.0
            found[index] = max(found[index], exact)
    return found


def _updates(
    step: int,
    rank: int,
    reference: RankDump,
    candidate: RankDump,
    found: Mapping[Key, tuple[Tensor, Tensor]],
    gradient_limits: Floats,
) -> list[Row]:
    """Rows of the updates: the values that the optimizer added to each parameter.

    An optimizer such as Adam divides by the gradient's size, so that rounding of a gradient that is almost 0 decides
    the sign of its update. Elements are compared whose gradient is known to a tenth: the noise of the gradient,
    relative to the element's own gradient g, is nu = limit · rms(g) / |g|; its update may differ by nu · |update|, and
    by the rounding of the parameter itself, u · |parameter|. From the second step on, gradients of earlier steps take
    part: where they cancel, the update is smaller than the largest, and nu is that much larger.
    """
    rows = []
    befores, slopes_of = (
        [
            {key.name: each for key, each in side.tensors.items() if key.phase == phase}
            for side in (reference, candidate)
        ]
        for phase in ("parameter_before", "gradient")
    )
    for (key, pair), limit in zip(found.items(), gradient_limits, strict=True):
        before, gradients = ([side.get(key.name) for side in sides] for sides in (befores, slopes_of))
        if None in before or None in gradients or pair[0].shape != pair[1].shape:
            continue
        update = [np.subtract(after.samples, start.samples) for after, start in zip(pair, before, strict=True) if start]
        slopes = [np.array(each.samples) for each in gradients if each]
        if len({len(each) for each in (*update, *slopes)}) != 1:
            continue
        size = max(each.rms for each in gradients if each)
        # The finer dtype: parameters that one side keeps in a coarser one are a difference to be named.
        unit = min(map(unit_of, pair))
        with np.errstate(invalid="ignore", divide="ignore"):
            noise = limit * size / np.minimum(*map(np.abs, slopes))
            if step > 1:
                smaller = np.minimum(*map(np.abs, update))
                noise *= np.nanmax(smaller) / smaller
            known = np.isfinite(update[0]) & np.isfinite(update[1]) & (noise <= _WELL_CONDITIONED)
        if not known.any():
            continue
        one, other = update[0][known], update[1][known]
        rounding = 2 * CERTAIN * unit * np.abs(np.array(pair[0].samples)[known])
        largest = max(_norm(one), _norm(other))
        if not largest:
            continue
        difference = _norm(other - one) / largest
        most = math.hypot(_norm(noise[known] * one), _norm(rounding)) / largest
        scale = _norm(other) / _norm(one) if _norm(one) else math.nan
        rows.append(Row(step, rank, key, *pair, difference, most, scale))
    return rows


def _norm(values: Floats) -> float:
    return float(np.linalg.norm(values))
