"""The first tensor that differs between two dumps: step by step, in the order of execution, on every rank.

Within a step: parameters before it (of step 1: the start), forward, backward with the gradients, then the update. Ranks
with replicas are also compared with each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ascendtune.check.align.adam_updates import AdamCheck
from ascendtune.check.align.dump import MOST_STEPS, Dump, RankDump
from ascendtune.check.align.language import Sentence
from ascendtune.check.align.last_weights import LastWeights, digests_of
from ascendtune.check.align.paired_tensors import (
    FROM_WEIGHTS,
    largest_of_matrices,
    make_tensor_rows,
    replica_rows,
)
from ascendtune.check.align.tensor_noise import ExtraNoise, is_float
from ascendtune.check.align.tensor_row import TensorRow
from ascendtune.check.align.untrained import trained_rows

_REPLICATED = ("parameter_before", "gradient", "parameter_after")
_OUTCOMES = ("loss", "backward", "gradient", "parameter_after")
"""Phases in which a difference of the forward pass must appear if it has an effect."""
_SAME_RATIO = 0.01


@dataclass(frozen=True)
class BatchComparison:
    """The rows of token ids of a step, of all ranks and micro-batches that both sides dumped.

    Attributes:
        rows, rows_of_candidate: number of rows of each side.
        common: number of rows that are in both batches, at any position.
    """

    rows: int
    rows_of_candidate: int
    common: int


@dataclass(frozen=True)
class FirstDifference:
    """The first difference between two trainings.

    Attributes:
        stage: code of the stage.
        row: the first tensor that differs.
        ranks: ranks on which the stage differs in this step.
        agreeing: name of the last tensor before it that agrees; empty if there is none.
        ratio: candidate over reference, if all gradients or all updates differ by the same factor.
        batch: comparison of the step's rows, for the stage `data`; None if a side has no hashes of rows.
        differing: number of modules with a tensor of the row's phase that differs on its rank.
        weight_difference: the largest relative difference of a weight matrix before the step, if an earlier step was
            not compared, whose update may be the cause; else 0.
    """

    step: int
    stage: str
    row: TensorRow
    ranks: tuple[int, ...]
    agreeing: str = ""
    ratio: float | None = None
    batch: BatchComparison | None = None
    differing: int = 1
    weight_difference: float = 0.0

    @property
    def follows_from_weights(self) -> bool:
        """Whether the difference is explained by weights that already differ before the step."""
        is_computed = self.stage not in ("start", "ranks") and not self.has_other_rows
        return is_computed and self.row.difference <= FROM_WEIGHTS * self.weight_difference

    @property
    def has_other_rows(self) -> bool:
        """Whether the sides were given different token ids, which weights cannot explain."""
        if self.stage != "data":
            return False
        return not is_float(self.row.reference) or (self.batch is not None and self.batch.common < self.batch.rows)

    @property
    def module(self) -> str:
        """Path of the module or name of the parameter that computed the tensor.

        The input of a module whose predecessors agree was computed by the enclosing module.
        """
        if self.row.key.phase == "forward" and self.row.key.slot.startswith("input") and self.stage != "data":
            return self.row.key.name.rpartition(".")[0] or self.row.key.name
        return self.row.key.name


@dataclass(frozen=True)
class DumpComparison:
    """The result of a comparison of two dumps.

    Attributes:
        steps: the compared steps; if one differs, it is the last.
        ranks: ranks that both sides have.
        place: None if no tensor differs.
        consequence: instead of `place`, if the losses differed earlier and the tensors follow from that.
        without_effect: the first forward tensor that differs although no loss and no gradient does.
        rows: tensors of the last compared step in the order of execution, of the rank that differed first.
        agreeing: stages in which tensors were compared and none differs.
        obstacle: reason why outputs of modules cannot be compared; None if they can.
        replicas: number of files of ranks whose replicas were compared with each other.
        compared: number of tensors that both sides have.
        other_rows: the first step whose batches have the same shape and different rows, and the comparison of these;
            None if there is none or the hashes are not sufficient.
        adam: what the first updates show about the optimizers; None if they show nothing.
    """

    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    place: FirstDifference | None = None
    consequence: FirstDifference | None = None
    without_effect: TensorRow | None = None
    rows: tuple[TensorRow, ...] = ()
    agreeing: frozenset[str] = frozenset()
    obstacle: Sentence | None = None
    replicas: int = 0
    compared: int = 0
    other_rows: tuple[int, BatchComparison] | None = None
    adam: AdamCheck | None = None


def compare_dumps(reference: Dump, candidate: Dump, extra: ExtraNoise) -> DumpComparison:
    """Compare the steps and ranks that both sides have, up to the first step that differs.

    Raises:
        DataError, RecipeError, MachineError: a file cannot be read.
    """
    steps = sorted(reference.files.keys() & candidate.files.keys())[:MOST_STEPS]
    so_far = DumpComparison(obstacle=Sentence("steps", "no step was dumped on both sides") if not steps else None)
    weights = LastWeights()
    for number, step in enumerate(steps, 1):
        comparison = _compare_step(step, reference, candidate, weights, extra)
        so_far = replace(
            comparison,
            steps=tuple(steps[:number]),
            without_effect=so_far.without_effect or comparison.without_effect,
            agreeing=(so_far.agreeing | comparison.agreeing)
            - {row.stage for row in comparison.rows if row.exceeds_limit},
            obstacle=so_far.obstacle or comparison.obstacle,
            other_rows=so_far.other_rows or comparison.other_rows,
            replicas=so_far.replicas + comparison.replicas,
            compared=so_far.compared + comparison.compared,
        )
        if comparison.place is not None:
            break
    return so_far


def _compare_step(
    step: int, reference: Dump, candidate: Dump, weights: LastWeights, extra: ExtraNoise
) -> DumpComparison:
    sides = [
        {rank: side.read(path) for rank, path in sorted(side.files[step].items())} for side in (reference, candidate)
    ]
    one, other = sides
    ranks = sorted(one.keys() & other.keys())
    obstacle = _obstacle(one, other, ranks)
    if obstacle:
        # Gradients and parameters are those of the whole batch on every rank.
        ranks = ranks[:1]
    rows = {
        rank: make_tensor_rows(step, rank, one[rank], other[rank], extra, with_modules=not obstacle) for rank in ranks
    }
    every = [row for of_rank in rows.values() for row in of_rank]
    unequal_replicas = [_unequal_replicas(step, side) for side in sides]
    has_gap = not weights.covers_all_before(step)
    changed = weights.changed(step, sides)
    weights.remember(step, sides)
    place, without_effect = _first(step, rows, obstacle, unequal_replicas)
    if changed is not None and (place is None or place.stage != "ranks"):
        # Weights that changed between two steps come before everything that the step computes.
        place, without_effect = FirstDifference(step, changed.stage, changed, (changed.rank,)), None
        rows.setdefault(changed.rank, []).insert(0, changed)
    if place is not None and place.stage == "data" and place.row.key.phase == "forward":
        batch = _batches(one, other)
        # Of the same rows in the same order the embedding has computed something else.
        is_same = batch is not None and batch.common == batch.rows == batch.rows_of_candidate
        place = replace(place, batch=batch, stage="forward" if is_same else "data")
    elif (
        place is not None
        and place.stage in ("backward", "update", "data")
        and (rows_of := _other_rows(step, one, other))
    ):
        # Ranks or micro-batches that cannot be compared one by one have other rows altogether.
        place = replace(place, stage="data", batch=rows_of[1])
    if place is not None and has_gap:
        place = replace(place, weight_difference=_weight_difference(sides, ranks[:1]))
    shown = place.row.rank if place is not None and place.row.rank in rows else min(rows, default=0)
    return DumpComparison(
        ranks=tuple(ranks),
        place=place,
        without_effect=without_effect,
        rows=tuple(rows.get(shown, ())),
        agreeing=frozenset(row.stage for row in every) - {row.stage for row in every if row.exceeds_limit},
        obstacle=obstacle,
        other_rows=_other_rows(step, one, other),
        replicas=sum(len(side) for side in sides if len(side) > 1 and digests_of(side, "gradient")),
        compared=len(every),
    )


def _weight_difference(sides: Sequence[Mapping[int, RankDump]], ranks: Sequence[int]) -> float:
    """The largest relative difference of a weight matrix before the step, on `ranks`."""
    one, other = ([side[rank].tensors for rank in ranks] for side in sides)
    return largest_of_matrices(
        [
            (tensor, second[key])
            for first, second in zip(one, other, strict=True)
            for key, tensor in first.items()
            if key.phase == "parameter_before" and key in second
        ]
    )


def _batches(one: Mapping[int, RankDump], other: Mapping[int, RankDump]) -> BatchComparison | None:
    """Compare the rows by their hashes; None if a side has none."""
    first, second = (Counter(each for dump in side.values() for each in dump.row_hashes) for side in (one, other))
    if not first or not second:
        return None
    return BatchComparison(first.total(), second.total(), (first & second).total())


def _other_rows(
    step: int, one: Mapping[int, RankDump], other: Mapping[int, RankDump]
) -> tuple[int, BatchComparison] | None:
    """`step` with its batches, if all ranks of both sides were dumped and their rows differ."""
    is_whole = all(len(side) == max((each.world_size for each in side.values()), default=0) for side in (one, other))
    batch = _batches(one, other)
    if not is_whole or batch is None or batch.rows != batch.rows_of_candidate or batch.common == batch.rows:
        return None
    return step, batch


def _obstacle(one: Mapping[int, RankDump], other: Mapping[int, RankDump], ranks: Sequence[int]) -> Sentence | None:
    """Reason why the outputs of modules belong to different rows; None if they can be compared."""
    if not ranks:
        return Sentence("ranks", "no rank was dumped on both sides")
    sizes = [max((each.world_size for each in side.values()), default=1) for side in (one, other)]
    if sizes[0] != sizes[1]:
        return Sentence("ranks", "the sides have {one} and {other} ranks, whose rows differ", _numbers(sizes))
    batch = _batches(one, other)
    is_in_order = all(one[rank].row_hashes == other[rank].row_hashes for rank in ranks)
    if batch is not None and batch.common == batch.rows == batch.rows_of_candidate:
        rows = {"rows": batch.rows}
        if not is_in_order:
            return Sentence("order", "the {rows:,} rows of the batch are the same, in another order", rows)
        if any(one[rank].row_begins != other[rank].row_begins for rank in ranks):
            return Sentence("padding", "the {rows:,} rows of the batch are the same, padded on another side", rows)
    for rank in ranks:
        batches = [{key.micro_batch for key in side[rank].tensors if key.phase == "forward"} for side in (one, other)]
        if all(batches) and len(batches[0]) != len(batches[1]):
            return Sentence("batches", "a step has {one} and {other} micro-batches", _numbers(list(map(len, batches))))
        if (reason := _other_shape(one[rank], other[rank])) is not None:
            return reason
    return None


def _other_shape(one: RankDump, other: RankDump) -> Sentence | None:
    """Reason if the first forward tensor that both sides have differs in its shape."""
    common = (key for key in one.tensors if key.phase == "forward" and key in other.tensors)
    key = next(common, None)
    if key is None or one.tensors[key].shape == other.tensors[key].shape:
        return None
    one_shape, other_shape = ("×".join(map(str, side.tensors[key].shape)) for side in (one, other))
    where = {"slot": key.slot, "one": one_shape, "other": other_shape}
    if not key.name:
        return Sentence("shapes", "the model ({slot}) has the shapes {one} and {other}", where)
    return Sentence("shapes", "{name} ({slot}) has the shapes {one} and {other}", {"name": key.name, **where})


def _numbers(both: Sequence[int]) -> dict[str, int]:
    return {"one": both[0], "other": both[1]}


def _first(
    step: int,
    rows: Mapping[int, Sequence[TensorRow]],
    obstacle: Sentence | None,
    unequal_replicas: Sequence[Mapping[str, TensorRow]],
) -> tuple[FirstDifference | None, TensorRow | None]:
    """The place at which the step differs, and a forward tensor that differs without effect."""
    every = [row for of_rank in rows.values() for row in of_rank]
    outcomes = [row for row in every if row.key.phase in _OUTCOMES]
    has_effect = not outcomes or any(row.exceeds_limit for row in outcomes)
    replicas = unequal_replicas[1] or unequal_replicas[0]
    if row := replicas.get("parameter_before"):
        return FirstDifference(step, "ranks", row, (row.rank,)), None
    trained = {rank: trained_rows(of_rank) for rank, of_rank in rows.items()}
    harmless = next((first for _, first in trained.values() if first is not None), None)
    for stage in ("start", "data", "forward", "backward", "update"):
        first_rows = {rank: first for rank, (of_rank, _) in trained.items() if (first := _first_row(of_rank, stage))}
        phase = {"backward": "gradient", "update": "parameter_after"}.get(stage, "")
        if (row := replicas.get(phase)) and not any(each.key.phase == "backward" for each in first_rows.values()):
            return FirstDifference(step, "ranks", row, (row.rank,), ratio=_ratio(every, phase)), None
        if not first_rows:
            continue
        rank = min(
            first_rows, key=lambda each: (first_rows[each].key.micro_batch or 0, first_rows[each].reference.order, each)
        )
        row = first_rows[rank]
        shows = has_effect and (stage != "forward" or row.is_of_norm or _passes_on(every))
        if stage in ("start", "data", "forward") and not shows:
            harmless = harmless or row
            continue
        if stage == "backward" and obstacle is not None and obstacle.code == "shapes":
            stage = "data"
        ratio = _ratio(rows[rank], "gradient" if row.stage == "backward" else row.key.phase)
        phase = row.key.phase
        differing = {
            each.key.name.rpartition(".")[0] for each in rows[rank] if each.key.phase == phase and each.exceeds_limit
        }
        ranks, agreeing = tuple(sorted(first_rows)), _agreeing(rows[rank], row)
        return FirstDifference(step, stage, row, ranks, agreeing, ratio, differing=len(differing)), harmless
    return None, harmless


def _passes_on(rows: Sequence[TensorRow]) -> bool:
    """Whether differences of the forward pass appear in a loss or in the gradient of an output, if those were dumped.

    If not, they are at positions that are not trained on, such as padding: a gradient or an update of a parameter that
    differs in the same step has another cause.
    """
    exceed = [row.exceeds_limit for row in rows if row.key.phase in ("loss", "backward")]
    return any(exceed) or not exceed


def _first_row(rows: Sequence[TensorRow], stage: str) -> TensorRow | None:
    """First row of a stage that differs in the order of computation: gradients from the last module to the first."""
    different = [row for row in rows if row.stage == stage and row.exceeds_limit]
    if not different:
        return None
    position = {row.key.name: row.reference.order for row in rows if row.key.phase == "forward"}

    def module_of(row: TensorRow) -> int:
        return position.get(row.key.name.rpartition(".")[0], -1)

    before = [row for row in different if row.key.phase != "gradient"]
    if not before:
        return max(different, key=module_of)
    # A side that detaches the output of a module has no gradients of it; the gradients of earlier modules then differ.
    cut = max((row for row in different if row.is_of_one_side), key=module_of, default=None)
    return cut if cut is not None and module_of(cut) > position.get(before[0].key.name, -1) else before[0]


def _agreeing(rows: Sequence[TensorRow], different_row: TensorRow) -> str:
    same = [
        row
        for row in rows
        if row.key.phase == different_row.key.phase and row.key.micro_batch == different_row.key.micro_batch
    ]
    before = same[: same.index(different_row)] if different_row.key.phase in ("forward", "backward") else []
    return next((f"{row.key.name} ({row.key.slot})" for row in reversed(before) if not row.exceeds_limit), "")


def _ratio(rows: Iterable[TensorRow], phase: str) -> float | None:
    """Candidate over reference of the norms, if it is the same for all tensors of the phase that differ."""
    ratios = np.array([row.scale for row in rows if row.key.phase == phase and row.exceeds_limit])
    if len(ratios) < 3 or not np.isfinite(ratios).all():
        return None
    middle = float(np.median(ratios))
    is_same = bool(np.all(np.abs(ratios - middle) <= _SAME_RATIO * middle))
    return middle if is_same and abs(middle - 1) > _SAME_RATIO else None


def _unequal_replicas(step: int, side: Mapping[int, RankDump]) -> dict[str, TensorRow]:
    """By phase, the first replica that differs between ranks of one side, with the rank that is in the minority.

    Ranks have the same parameters and, after the reduction, the same gradients; only rank 0 writes sharded ones.
    """
    rows: dict[str, TensorRow] = {}
    if len(side) < 2:
        return rows
    usual = side[min(side)]
    for phase in _REPLICATED:
        keys = [key for key in usual.tensors if key.phase == phase]
        for key in keys:
            holders = {rank: each.tensors[key] for rank, each in side.items() if key in each.tensors}
            digests = [each.digest for each in holders.values()]
            if len(set(digests)) == 1:
                continue
            most = max(dict.fromkeys(digests), key=digests.count)
            common = next(each for each in holders.values() if each.digest == most)
            odd = {rank: each for rank, each in holders.items() if each is not common and each.digest != most}
            row = next((each for each in replica_rows(step, key, common, odd) if each.exceeds_limit), None)
            if row is not None:
                rows[phase] = row
                break
    return rows
