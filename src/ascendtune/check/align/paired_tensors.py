"""The tensors of one step and rank of both sides in pairs, with their difference and its limit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
from ascendtune.check.align.tensor_row import EMBEDDINGS, TensorRow
from ascendtune.check.align.tensor_updates import update_rows

_GROWTH = 0.5
"""Share of the limit that every further step adds, as for losses: earlier roundings have changed the weights."""
_AMPLIFYING_UPDATES = 3
"""Number of updates that each enlarge a difference of weights, if layers amplify it."""
_OF_ROUTED = 2.0
"""Factor of the limits in 16 bits if a router sends tokens to experts: rounding changes the choice for some."""
_UNIT_OF_BF16 = 2.0**-8
"""Rounding unit of bf16, for Muon's updates and for gradients that are sent, whatever the dtype of the products."""
FROM_WEIGHTS = 30.0
"""Factor from a difference of weights to that of what a module computes: norms, attention, small gradients amplify."""
_REPLICA_OPERATIONS = 64
"""Operations that may be rounded differently on the ranks before replicas count as different; usually bits agree."""

Pair = tuple[TensorStatistics, TensorStatistics]
PairGroups = Mapping[tuple[str, int | None], Mapping[TensorKey, Pair]]
"""Phase and micro-batch -> the pairs of tensors."""


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

    On rank 0 this includes gradients that only one side has. With Muon, updates of matrices are omitted: it
    orthogonalises in bf16, with five steps of an iteration that enlarges small values, and for a gradient of low rank a
    rounding difference of a thousandth gives a different update.

    Args:
        with_modules: whether to include outputs of modules and their gradients, which belong to a rank's own rows.
    """
    groups = _paired(rank, reference, candidate, extra)
    noise = _StepNoise.of(step, groups, extra, tensors=len(reference.tensors))
    drift = FROM_WEIGHTS * _drift(groups) if step > 1 else 0.0
    rows: list[TensorRow] = []
    for (phase, _), tensors in groups.items():
        pairs = [*tensors.values()]
        if phase == "parameter_after":
            rows += update_rows(step, rank, reference, candidate, tensors, noise.of_gradients(pairs))
        elif phase == "parameter_before" and step > 1:
            pass  # Compared as updates.
        elif with_modules or phase in ("gradient", "parameter_before"):
            most = np.hypot(noise.limits(phase, tensors), drift)
            relative = _measured(reference, candidate, pairs)
            if phase in ("forward", "backward"):
                _ignore_order(relative, pairs, most, noise.vectors)
            if phase in ("forward", "backward", "gradient") and not noise.is_routed and extra.after_update == 1:
                relative, most = with_norms(pairs, relative, most, noise.unit, of_gradients=phase == "gradient")
            rows += _rows(step, rank, [*tensors], pairs, relative, most)
    return rows


def _paired(rank: int, reference: RankDump, candidate: RankDump, extra: ExtraNoise) -> PairGroups:
    """The pairs to compare by phase and micro-batch, in the order of execution of the reference."""
    groups: dict[tuple[str, int | None], dict[TensorKey, Pair]] = {}
    for key, tensor in reference.tensors.items():
        if (other := candidate.tensors.get(key)) is not None and not _is_of_its_input(key, tensor):
            groups.setdefault((key.phase, key.micro_batch), {})[key] = tensor, other
    # Only rank 0 writes sharded parameters, on both sides.
    if rank == 0 and ("gradient", None) in groups:
        groups["gradient", None] |= _gradients_of_one_side(reference, candidate)
    if extra.has_muon and (updates := groups.get(("parameter_after", None))):
        groups["parameter_after", None] = {key: pair for key, pair in updates.items() if len(pair[0].shape) != 2}
    return groups


@dataclass(frozen=True)
class _StepNoise:
    """Quantities of one step on one rank on which the limits of its tensors depend.

    Attributes:
        unit: the coarsest rounding unit.
        growth: factor for earlier steps, and for a router.
        operations: number of tensors of one forward pass.
        tokens: number of tokens of a micro-batch.
        vectors: number of vectors that most outputs have; None without outputs.
        is_routed: whether a router sends tokens to experts, in 16 bits.
    """

    step: int
    groups: PairGroups
    extra: ExtraNoise
    unit: float
    growth: float
    operations: int
    tokens: int
    vectors: int | None
    is_routed: bool

    @classmethod
    def of(cls, step: int, groups: PairGroups, extra: ExtraNoise, *, tensors: int) -> _StepNoise:
        """The noise of a step; `tensors` is the number of all tensors."""
        forward = [[*pairs.values()] for (phase, _), pairs in groups.items() if phase == "forward"]
        outputs = [pair for pairs in forward for pair in pairs]
        unit = max((unit_of(each) for pair in outputs for each in pair), default=0.0)
        unit = max(unit, extra.product_unit)
        is_routed = extra.has_experts and unit > UNIT_FP32
        if step > 1 and (extra.has_muon or extra.sends_bf16):
            unit = max(unit, _UNIT_OF_BF16)
        growth = (1 + _GROWTH * (step - 1)) * extra.after_update ** min(step - 1, _AMPLIFYING_UPDATES)
        usual = Counter(each.vectors for each, _ in outputs if len(each.shape) > 1).most_common(1)
        return cls(
            step, groups, extra, unit, growth * (_OF_ROUTED if is_routed else 1.0),
            operations=max(map(len, forward), default=tensors),
            tokens=max((each.vectors for each, _ in outputs), default=1),
            vectors=usual[0][0] if usual else None, is_routed=is_routed,
        )  # fmt: skip

    def limits(self, phase: str, tensors: Mapping[TensorKey, Pair]) -> Floats:
        """(pairs,) float64: the largest relative differences of the tensors of a phase that rounding explains."""
        pairs = [*tensors.values()]
        if phase == "parameter_before":
            return np.array([_storage_limit(*pair) for pair in pairs])
        if phase == "forward":
            # After the first step all weights were updated with gradients of the coarsest dtype.
            trained = self.step > 1 or _is_of_trained(tensors, self.groups)
            return self.growth * limits(pairs, unit=np.where(trained, self.unit, self.extra.product_unit))
        if phase in ("loss", "backward"):
            return self.growth * limits(pairs, operations_before=self.operations, unit=self.unit)
        return self.of_gradients(pairs)

    def of_gradients(self, pairs: Pairs) -> Floats:
        """(pairs,) float64: the same for gradients of parameters."""
        sent = max(self.unit, _UNIT_OF_BF16) if self.extra.sends_bf16 else self.unit
        return self.growth * limits(pairs, operations_before=2 * self.operations, reduction=self.tokens, unit=sent)


def _is_of_its_input(key: TensorKey, tensor: TensorStatistics) -> bool:
    """Whether it is the gradient of a tensor, of any shape, that a module returned as it came in.

    That gradient is the sum over all users of the input, and over this module's alone where a side casts the input
    before it calls the module, as PEFT does with that of its Identity in place of dropout.
    """
    return key.phase == "backward" and tensor.kind == "Identity"


def _gradients_of_one_side(reference: RankDump, candidate: RankDump) -> dict[TensorKey, Pair]:
    """Gradients that only one side has, with zeros for the other side.

    These are gradients of parameters that both sides train, if one side detaches what they compute, and of parameters
    that one side trains in addition to all those of the other. If both sides have parameters of their own, these may be
    the same ones under other names.
    """
    sides = [{key.name for key in side.tensors if key.phase == "parameter_before"} for side in (reference, candidate)]
    compared = sides[0] & sides[1]
    if (sides[0] < sides[1] or sides[1] < sides[0]) and all(sides):
        compared = sides[0] | sides[1]
    gradients = {}
    for side, other in ((reference, candidate), (candidate, reference)):
        for key, tensor in side.tensors.items():
            if key.phase == "gradient" and key.name in compared and key not in other.tensors:
                zero = (0.0,) * len(tensor.samples)
                none = TensorStatistics(tensor.order, "", tensor.shape, "", 0.0, 0.0, 0.0, 0.0, 0, 0, "", zero)
                gradients[key] = (tensor, none) if side is reference else (none, tensor)
    return gradients


def _is_of_trained(
    pairs: Mapping[TensorKey, Pair],
    groups: Mapping[tuple[str, int | None], Mapping[TensorKey, Any]],
) -> NDArray[np.bool_]:
    """(found,) whether a tensor is the output of a module with trained weights of its own, other than an embedding.

    DeepSpeed, and FSDP in other loops, compute with them in the dtype of the products, even if the output is finer.
    """
    trained = {key.name.rpartition(".")[0] for key in groups.get(("parameter_before", None), ())}
    return np.array(
        [
            key.slot.startswith("output") and key.name in trained and one.kind not in EMBEDDINGS
            for key, (one, _) in pairs.items()
        ],
        dtype=bool,
    )


def _ignore_order(relative: Floats, pairs: Pairs, most: Floats, usual: int | None) -> None:
    """Replace entries of `relative`, (pairs,), for tensors that contain the same values in another order.

    Only for tensors whose number of vectors differs from the number of tokens of the batch, `usual`: experts get the
    tokens in an order that depends on all of them.
    """
    if usual is None:
        return
    for at, (one, other) in enumerate(pairs):
        if relative[at] > most[at] and one.vectors != usual and is_float(one) and len(one.shape) > 1:
            in_any_order = float(differences_in_any_order([(one, other)])[0])
            if in_any_order <= most[at]:
                relative[at] = in_any_order


def _drift(
    groups: Mapping[tuple[str, int | None], Mapping[TensorKey, Pair]],
) -> float:
    """The largest relative difference of a weight matrix before the step, if updates are compared as well.

    Earlier updates agreed within rounding; the remaining difference of the weights affects everything they compute.
    """
    if ("parameter_after", None) not in groups:
        return 0.0
    return largest_of_matrices([*groups.get(("parameter_before", None), {}).values()])


def largest_of_matrices(pairs: Pairs) -> float:
    """The largest relative difference of a matrix among tensors of any shape; 0 if there is none."""
    relative = differences([pair for pair in pairs if len(pair[0].shape) > 1])
    return float(relative[np.isfinite(relative)].max(initial=0.0))


def rows_of_pair(
    step: int, rank: int, key: TensorKey, reference: TensorStatistics, candidate: TensorStatistics
) -> list[TensorRow]:
    """The row of a tensor, of any shape, that must be equal."""
    pairs = [(reference, candidate)]
    return _rows(step, rank, [key], pairs, differences(pairs), np.zeros(1))


def replica_rows(
    step: int, key: TensorKey, common: TensorStatistics, odd: Mapping[int, TensorStatistics]
) -> list[TensorRow]:
    """Rows of one tensor, of any shape, for several ranks, compared with the value that most ranks have."""
    pairs = [(common, each) for each in odd.values()]
    most = limits(pairs, operations_before=_REPLICA_OPERATIONS)
    relative = differences(pairs)
    return [
        row
        for at, rank in enumerate(odd)
        for row in _rows(step, rank, [key], pairs[at : at + 1], relative[at:], most[at:])
    ]


def _rows(
    step: int, rank: int, keys: Sequence[TensorKey], pairs: Pairs, relative: Floats, most: Floats
) -> list[TensorRow]:
    return [
        TensorRow(step, rank, key, *pair, float(difference), float(limit), _scale(*pair))
        for key, pair, difference, limit in zip(keys, pairs, relative, most, strict=False)
    ]


def _scale(reference: TensorStatistics, candidate: TensorStatistics) -> float:
    return candidate.l2 / reference.l2 if reference.l2 > 0 else math.nan


def _storage_limit(reference: TensorStatistics, candidate: TensorStatistics) -> float:
    """Limit for loaded weights: 0 for equal dtypes, otherwise the rounding to the coarser one.

    Without samples, statistics are compared, which were summed pairwise in fp32 (Higham 2002, section 4.2): log2(n)
    roundings.
    """
    if reference.dtype != candidate.dtype:
        return 2 * max(unit_of(reference), unit_of(candidate))
    if reference.samples and candidate.samples:
        return 0.0
    return CERTAIN * UNIT_FP32 * math.log2(max(2, reference.numel))


def _measured(reference: RankDump, candidate: RankDump, pairs: Pairs) -> Floats:
    """(pairs,) float64: differences, from the whole tensors if both sides wrote them."""
    relative = differences(pairs)
    if reference.values is None or candidate.values is None:
        return relative
    for index, (one, other) in enumerate(pairs):
        if relative[index] == 0 or not math.isfinite(relative[index]):
            continue
        values = read_values(reference, one), read_values(candidate, other)
        if values[0] is not None and values[1] is not None and len(values[0]) == len(values[1]):
            errors = (values[1] - values[0])[np.isfinite(values[0]) & np.isfinite(values[1])]
            size = max(one.rms, other.rms)
            exact = math.sqrt(float(np.mean(errors**2))) / size if len(errors) and size else 0.0
            relative[index] = max(relative[index], exact)
    return relative
