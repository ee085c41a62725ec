"""Tensors of one step and rank, reference beside candidate, with their difference and its limit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align.curve import Floats
from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics, read_values
from ascendtune.check.align.tensor_noise import (
    CERTAIN,
    NO_EXTRA_NOISE,
    UNIT_FP32,
    ExtraNoise,
    Pairs,
    differences,
    differences_in_any_order,
    is_float,
    limits,
    unit_of,
    with_norms,
)

_GROWTH = 0.5
"""Share of the limit that every further step adds, as for losses: weights have parted by rounding before."""
_AMPLIFYING_UPDATES = 3
"""Updates of which each makes more of a difference of weights, where layers amplify it."""
_WELL_CONDITIONED = 0.1
"""An element's update is compared where the noise of its gradient changes it by at most this share."""
_OF_ROUTED = 2.0
"""Factor of the limits in 16 bits, where rounding decides to which expert some tokens go."""
_UNIT_OF_BF16 = 2.0**-8
"""u of what is rounded to bf16, whatever the products are computed in: Muon's updates, gradients that are sent."""
FROM_WEIGHTS = 30.0
"""Times as much as weights may differ what a module computes with them: norms, attention, small gradients amplify."""
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
class TensorRow:
    """One tensor on both sides.

    Attributes:
        difference: relative, as `tensor_noise.differences` defines it; of updates the difference of what the optimizer
            added; NaN where the shapes differ.
        limit: from rounding.
        scale: candidate over reference of the L2 norms; of updates by the samples.
    """

    step: int
    rank: int
    key: TensorKey
    reference: TensorStatistics
    candidate: TensorStatistics
    difference: float
    limit: float
    scale: float

    @property
    def is_parted(self) -> bool:
        return self.difference > self.limit

    @property
    def is_of_one_side(self) -> bool:
        """Whether one side alone has a gradient of the parameter; the other's counts as 0."""
        return bool(self.reference.dtype) != bool(self.candidate.dtype)

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


def make_tensor_rows(
    step: int,
    rank: int,
    reference: RankDump,
    candidate: RankDump,
    extra: ExtraNoise = NO_EXTRA_NOISE,
    *,
    with_modules: bool,
) -> list[TensorRow]:
    """Rows of all tensors that both sides have, in the order of execution of the reference.

    On rank 0 also the gradients that one side alone has. With Muon updates of matrices are left out: it orthogonalises
    in bf16, with five steps of an iteration that enlarges what is small, and a gradient of low rank whose rounding
    differs by a thousandth gives another update.

    Args:
        with_modules: also outputs of modules and their gradients, which are those of a rank's own rows.
    """
    groups: dict[tuple[str, int | None], dict[TensorKey, tuple[TensorStatistics, TensorStatistics]]] = {}
    for key, tensor in reference.tensors.items():
        if (other := candidate.tensors.get(key)) is not None:
            groups.setdefault((key.phase, key.micro_batch), {})[key] = tensor, other
    # Rank 0 writes all parameters; the others none of those that are divided among ranks, on either side.
    if rank == 0 and ("gradient", None) in groups:
        groups["gradient", None] |= _gradients_of_one_side(reference, candidate)
    growth = (1 + _GROWTH * (step - 1)) * extra.after_update ** min(step - 1, _AMPLIFYING_UPDATES)
    forward = {batch: [*found.values()] for (phase, batch), found in groups.items() if phase == "forward"}
    modules = [pair for pairs in forward.values() for pair in pairs]
    unit = max((unit_of(each) for pair in modules for each in pair), default=0.0)
    is_routed = extra.has_experts and unit > UNIT_FP32
    growth *= _OF_ROUTED if is_routed else 1.0
    tokens = max((each.vectors for each, _ in modules), default=1)
    usual = Counter(each.vectors for each, _ in modules if len(each.shape) > 1).most_common(1)
    operations = max(map(len, forward.values()), default=len(reference.tensors))
    drift = FROM_WEIGHTS * _drift(groups) if step > 1 else 0.0
    rows: list[TensorRow] = []
    if step > 1 and (extra.has_muon or extra.sends_bf16):
        unit = max(unit, _UNIT_OF_BF16)
    if extra.has_muon and (updates := groups.get(("parameter_after", None))):
        groups["parameter_after", None] = {key: pair for key, pair in updates.items() if len(pair[0].shape) != 2}
    for (phase, _), found in groups.items():
        pairs = [*found.values()]
        sent = max(unit, _UNIT_OF_BF16) if extra.sends_bf16 else unit
        of_gradients = growth * limits(pairs, operations_before=2 * operations, reduction=tokens, unit=sent)
        if phase == "parameter_after":
            rows += _updates(step, rank, reference, candidate, found, of_gradients)
            continue
        if phase == "parameter_before":
            if step > 1:
                continue  # Compared as updates.
            most = np.array([_storage_limit(*pair) for pair in pairs])
        elif phase == "forward":
            # After the first step the weights have learnt from gradients of the coarsest dtype.
            most = growth * limits(pairs, unit=unit if step > 1 else np.where(_is_of_trained(found, groups), unit, 0.0))
        elif phase in ("loss", "backward"):
            most = growth * limits(pairs, operations_before=operations, unit=unit)
        else:
            most = of_gradients
        if with_modules or phase in ("gradient", "parameter_before"):
            most = np.hypot(most, drift)
            apart = _measured(reference, candidate, pairs)
            if phase in ("forward", "backward") and usual:
                _forgive_order(apart, pairs, most, usual[0][0])
            if phase == "gradient" and not is_routed and extra.after_update == 1:
                apart, most = with_norms(pairs, apart, most)
            rows += _rows(step, rank, [*found], pairs, apart, most)
    return rows


def _gradients_of_one_side(
    reference: RankDump, candidate: RankDump
) -> dict[TensorKey, tuple[TensorStatistics, TensorStatistics]]:
    """Gradients that one side alone has, with zeros for the other.

    Of parameters that both sides train: one detaches what they compute. Of parameters that one side trains beside all
    those of the other; if both sides have parameters of their own, these may be the same ones under other names.
    """
    sides = [{key.name for key in side.tensors if key.phase == "parameter_before"} for side in (reference, candidate)]
    compared = sides[0] & sides[1]
    if (sides[0] < sides[1] or sides[1] < sides[0]) and all(sides):
        compared = sides[0] | sides[1]
    found = {}
    for side, other in ((reference, candidate), (candidate, reference)):
        for key, tensor in side.tensors.items():
            if key.phase == "gradient" and key.name in compared and key not in other.tensors:
                zero = (0.0,) * len(tensor.samples)
                none = TensorStatistics(tensor.order, "", tensor.shape, "", 0.0, 0.0, 0.0, 0.0, 0, 0, "", zero)
                found[key] = (tensor, none) if side is reference else (none, tensor)
    return found


def _is_of_trained(
    found: Mapping[TensorKey, tuple[TensorStatistics, TensorStatistics]],
    groups: Mapping[tuple[str, int | None], Mapping[TensorKey, Any]],
) -> NDArray[np.bool_]:
    """(found,) whether a tensor is the output of a module with trained weights of its own, other than an embedding.

    DeepSpeed, and FSDP in other loops, compute with them in the type of the products, though the output may be finer.
    """
    trained = {key.name.rpartition(".")[0] for key in groups.get(("parameter_before", None), ())}
    return np.array(
        [
            key.slot.startswith("output") and key.name in trained and one.kind not in _EMBEDDINGS
            for key, (one, _) in found.items()
        ],
        dtype=bool,
    )


def _forgive_order(apart: Floats, pairs: Pairs, most: Floats, usual: int) -> None:
    """Change `apart`, (pairs,), where tensors hold the same values in another order.

    Only for those with another number of vectors than the tokens of the batch, `usual`: the experts of a mixture get
    the tokens in an order that depends on all of them.
    """
    for at, (one, other) in enumerate(pairs):
        if apart[at] > most[at] and one.vectors != usual and is_float(one) and len(one.shape) > 1:
            in_any_order = float(differences_in_any_order([(one, other)])[0])
            if in_any_order <= most[at]:
                apart[at] = in_any_order


def _drift(
    groups: Mapping[tuple[str, int | None], Mapping[TensorKey, tuple[TensorStatistics, TensorStatistics]]],
) -> float:
    """The largest relative difference of a matrix of weights before the step, where updates are compared, too.

    Earlier updates have agreed within rounding: what is left of it in the weights shows in all that they compute.
    """
    if ("parameter_after", None) not in groups:
        return 0.0
    return largest_of_matrices([*groups.get(("parameter_before", None), {}).values()])


def largest_of_matrices(pairs: Pairs) -> float:
    """The largest relative difference of a matrix among tensors of any shape; 0 where there is none."""
    found = differences([pair for pair in pairs if len(pair[0].shape) > 1])
    return float(found[np.isfinite(found)].max(initial=0.0))


def rows_of_pair(
    step: int, rank: int, key: TensorKey, reference: TensorStatistics, candidate: TensorStatistics
) -> list[TensorRow]:
    """The row of a tensor, of any shape, that must be equal."""
    pairs = [(reference, candidate)]
    return _rows(step, rank, [key], pairs, differences(pairs), np.zeros(1))


def replica_rows(
    step: int, key: TensorKey, common: TensorStatistics, odd: Mapping[int, TensorStatistics]
) -> list[TensorRow]:
    """Rows of one tensor, of any shape, of several ranks beside the one that most ranks hold."""
    pairs = [(common, each) for each in odd.values()]
    most = limits(pairs, operations_before=_REPLICA_OPERATIONS)
    found = differences(pairs)
    return [
        row
        for at, rank in enumerate(odd)
        for row in _rows(step, rank, [key], pairs[at : at + 1], found[at:], most[at:])
    ]


def _rows(
    step: int, rank: int, keys: Sequence[TensorKey], pairs: Pairs, found: Floats, most: Floats
) -> list[TensorRow]:
    return [
        TensorRow(step, rank, key, *pair, float(difference), float(limit), _scale(*pair))
        for key, pair, difference, limit in zip(keys, pairs, found, most, strict=False)
    ]


def _scale(reference: TensorStatistics, candidate: TensorStatistics) -> float:
    return candidate.l2 / reference.l2 if reference.l2 > 0 else math.nan


def _storage_limit(reference: TensorStatistics, candidate: TensorStatistics) -> float:
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
    found: Mapping[TensorKey, tuple[TensorStatistics, TensorStatistics]],
    gradient_limits: Floats,
) -> list[TensorRow]:
    """Rows of the updates: the values that the optimizer added to each parameter.

    An optimizer such as Adam divides by the gradient's size, so that rounding of a gradient that is almost 0 decides
    the sign of its update. Elements are compared whose gradient is known to a tenth: the noise of the gradient,
    relative to the element's own gradient g, is nu = limit · rms(g) / |g|; its update may differ by nu · |update|, and
    by the rounding of the parameter itself, u · |parameter|. From the second step on, gradients of earlier steps take
    part: where they cancel, the update is smaller than usual, and nu is that much larger. In the first step an element
    whose gradient is exactly 0 on both sides (LoRA's A, embeddings of tokens that do not occur) is moved by weight
    decay alone, which nothing disturbs.
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
    for (key, pair), limit in zip(found.items(), gradient_limits, strict=True):
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
                # Of the larger update: one side alone may not have moved the parameter at all.
                noise *= np.maximum(usual(slope) / np.maximum(*map(np.abs, update)), 1.0)
            # A decay is in proportion to the weight, which one side may have rounded before.
            noise = np.where(by_decay, 2 * np.abs(starts[1] - starts[0]) / np.minimum(*map(np.abs, starts)), noise)
            known = np.isfinite(update[0]) & np.isfinite(update[1]) & (noise <= _WELL_CONDITIONED)
        # The finer dtype: parameters that one side keeps in a coarser one are a difference to be named. A decay alone
        # would be below the last digit of the coarser one.
        units = np.where(by_decay, max(map(unit_of, pair)), min(map(unit_of, pair)))
        rounding = 2 * CERTAIN * units * np.abs(values[0])
        # Apart: the noise of the others would hide what decay alone moves.
        parts = (known & ~by_decay, known & by_decay)
        found_in = [each for chosen in parts if (each := _difference_of(update, noise, rounding, chosen)) is not None]
        if found_in:
            difference, most, scale = next((each for each in found_in if each[0] > each[1]), found_in[0])
            rows.append(TensorRow(step, rank, key, *pair, difference, most, scale))
    return rows


def _difference_of(
    update: Sequence[Floats], noise: Floats, rounding: Floats, chosen: NDArray[np.bool_]
) -> tuple[float, float, float] | None:
    """Of the `chosen` elements of two updates: the relative difference, its limit, and candidate over reference.

    None where neither side has moved one. All arguments: (samples,), `update` of both sides.
    """
    one, other = update[0][chosen], update[1][chosen]
    largest = max(_norm(one), _norm(other))
    if not largest:
        return None
    most = math.hypot(_norm(noise[chosen] * one), _norm(rounding[chosen])) / largest
    return _norm(other - one) / largest, most, _norm(other) / _norm(one) if _norm(one) else math.nan


def _usual_update(changes: Sequence[Sequence[Floats]]) -> Callable[[Floats], Floats]:
    """From gradients, (samples,), to the sizes of updates of a step in which nothing cancels: (samples,).

    Adam's updates are as large as the largest of all parameters, whatever the gradient; those of SGD are in proportion
    to the gradient. The smaller of both holds for either.

    Args:
        changes: of each parameter the updates of both sides, then their gradients, (samples,) each.
    """
    of_all = [np.abs(np.concatenate(each)) for each in zip(*changes, strict=True)] or [np.zeros(1)] * 4
    update, slope = (np.minimum(*of_all[at : at + 2]) for at in (0, 2))
    is_known = np.isfinite(update) & np.isfinite(slope) & (slope > 0)
    largest = float(update[is_known].max(initial=0.0))
    ratio = float((update[is_known] / slope[is_known]).max(initial=0.0))
    return lambda slopes: np.minimum(ratio * slopes, largest)


def _norm(values: Floats) -> float:
    return float(np.linalg.norm(values))
