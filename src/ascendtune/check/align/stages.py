"""The questions that are asked in turn; the first whose answers differ explains what differs later.

Each answer is a finding: `ok`, `failure` where the two trainings part, `warning` where they were asked for different
things and no number shows it, `unknown` where one side recorded nothing to compare.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ascendtune.check.align.curve import Pair, paired
from ascendtune.check.align.noise import Noise
from ascendtune.check.align.parting import DumpComparison, compare_dumps
from ascendtune.check.align.side import Side
from ascendtune.check.align.tensor_findings import refined
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.core.errors import NoVerdict
from ascendtune.core.units import count_of
from ascendtune.recipe.changes import kind_of_loss

# Keys that decide where things go and how they are computed, not what is computed.
_FREE = (
    *("name", "run_dir", "track.", "checkpoint.", "eval.", "memory.", "parallel.", "kernel", "align.", "on_nan"),
    *("on_hang", "deterministic", "batch.", "precision", "model.attention", "model.path", "data.processes"),
)
# Decided by hashes where both sides have them: the same files may lie elsewhere.
_DATA = ("data.train", "data.eval")
_CAUSES = ("question", "data", "start")
"""Stages that look at what went in, not at what came out."""
_JUMP = 10.0
"""Growth of a difference from one record to the next that rounding does not show, however unstable the training."""
_STEEPEST = 3
_SHOWN = 5
VERL_LIMIT = 0.02
"""Mean relative difference of losses that verl accepts between NPU and GPU."""
ASCEND_LIMIT = 0.05
"""The same in the acceptance rule of the Ascend community (verl-ascend-recipe, issue 74)."""


@dataclass(frozen=True)
class Comparison:
    """Two trainings, held against each other.

    Attributes:
        findings: one per stage, in the order of the stages.
        parted: the finding that explains the difference; None where the losses agree.
        step: the first step at which the trainings part.
        dumps: tensors that both sides dumped; empty where a side has none.
    """

    pair: Pair
    noise: Noise
    findings: tuple[Finding, ...]
    parted: Finding | None
    step: int | None
    dumps: DumpComparison = field(default_factory=DumpComparison)

    @property
    def mean_difference(self) -> float | None:
        """Mean over the steps of |candidate - reference| / |reference|; None where no step has a number on both."""
        known = self.pair.relative[np.isfinite(self.pair.relative)]
        return float(known.mean()) if len(known) else None


def compare(reference: Side, candidate: Side, noise: Noise) -> Comparison:
    """Ask all stages.

    Raises:
        NoVerdict: the losses are of different kinds, or no step was recorded or dumped by both sides.
        DataError, RecipeError, MachineError: a dump cannot be read.
    """
    _require_same_kind(reference, candidate)
    pair = paired(reference.curve, candidate.curve)
    has_both = reference.dump is not None and candidate.dump is not None
    dumps = compare_dumps(reference.dump, candidate.dump) if has_both else DumpComparison()  # type: ignore[arg-type]
    if not dumps.compared and not (np.isfinite(pair.reference) | np.isfinite(pair.candidate)).any():
        raise NoVerdict(
            "no step that both sides recorded has a loss",
            code="no-common-steps",
            remedy="record the same steps: track.every_steps, or logging_steps: 1 in the other trainer",
            where=f"{reference.path} and {candidate.path}",
        )
    exceeding, other_rate = _exceeding(pair, noise), _first_other_rate(reference, candidate)
    from_records: tuple[Finding, ...] = (
        _question(reference, candidate),
        _data(reference, candidate),
        _start(reference, candidate),
        _forward(pair, noise, exceeding),
        _backward(reference, candidate, noise),
        _update(other_rate, pair, exceeding),
        _later(pair, noise, exceeding),
        _ranks(reference, candidate, exceeding),
    )
    findings = refined(from_records, dumps)
    place = dumps.place
    if place is None and not any(each.status == "failure" and each.code not in _CAUSES for each in findings):
        # A different question whose answer is the same does not part two trainings.
        return Comparison(pair, noise, tuple(map(_as_warning, findings)), None, None, dumps)
    parted = next(each for each in findings if each.status == "failure")
    if place is not None and parted.code not in _CAUSES:
        # The dump knows which stage parted first; later ones follow from it.
        parted = next(each for each in findings if each.code == place.stage)
    seen = (place.step if place is not None else None, exceeding, other_rate[0] if other_rate else None)
    step = next((each for each in seen if each is not None), 1)
    return Comparison(pair, noise, findings, parted, step, dumps)


def _as_warning(finding: Finding) -> Finding:
    return replace(finding, status="warning") if finding.status == "failure" else finding


def _require_same_kind(reference: Side, candidate: Side) -> None:
    kinds = [kind_of_loss(side.recipe) for side in (reference, candidate) if side.recipe is not None]
    if len(set(kinds)) > 1:
        raise NoVerdict(
            f"the losses are of different kinds: {' and '.join(kinds)}",
            code="losses-differ",
            remedy="compare runs with the same method.stage and method.preference.loss",
        )


def _exceeding(pair: Pair, noise: Noise) -> int | None:
    """The first step whose losses differ by more than rounding explains; a number beside NaN does."""
    one_is_nan = np.isfinite(pair.reference) != np.isfinite(pair.candidate)
    beyond = np.flatnonzero((pair.difference > noise.band(pair.steps)) | one_is_nan)
    if not len(beyond):
        return None
    first = int(beyond[0])
    if not one_is_nan[first] and noise.measured is None and _is_amplified(pair, noise, first):
        return None
    return int(pair.steps[first])


def _is_amplified(pair: Pair, noise: Noise, beyond: int) -> bool:
    """Whether the difference at record `beyond` is rounding that an unstable training has amplified.

    Such a difference begins at the level of rounding and is multiplied by every step. A fault makes a difference from
    one step to the next, or one that adds up with the updates: then it grows with a power of the steps, at most the
    third, for a fault in the optimizer during a linear warm-up. Curves whose mean difference exceeds verl's limit
    differ, whatever the cause.
    """
    difference = np.maximum(np.nan_to_num(pair.difference[: beyond + 1]), noise.loss)
    so_far = np.maximum.accumulate(difference)
    factors = so_far[1:] / so_far[:-1]
    half = len(so_far) // 2
    grown = so_far[-1] / so_far[half]
    # One record alone must not make the growth: that is a jump.
    is_gradual = bool(np.all(factors <= _JUMP) and grown >= 2 * factors[half:].max(initial=1.0))
    mean = float(np.nanmean(pair.relative))
    return is_gradual and bool(grown > 2**_STEEPEST) and mean < VERL_LIMIT


def _question(reference: Side, candidate: Side) -> Finding:
    """1: were both asked for the same?"""
    if reference.recipe is None or candidate.recipe is None:
        which = reference if reference.recipe is None else candidate
        return unknown("question", f"{which.name} ({which.kind}) records no recipe that can be compared")
    keys = sorted(reference.recipe.keys() | candidate.recipe.keys())
    different = [
        key
        for key in keys
        if reference.recipe.get(key) != candidate.recipe.get(key) and not key.startswith((*_FREE, *_DATA))
    ]
    batches = [side.run.get("global_batch") for side in (reference, candidate)]
    lines = [f"{key}: {reference.recipe.get(key)} and {candidate.recipe.get(key)}" for key in different]
    if None not in batches and batches[0] != batches[1]:
        lines.insert(0, f"global batch: {batches[0]} and {batches[1]} sequences a step")
    if not lines:
        return ok("question", "the recipes ask for the same")
    return Finding(
        "question",
        "failure",
        f"the recipes differ in {count_of(len(lines), 'key that decides', 'keys that decide')} the result: {lines[0]}",
        remedy="train the candidate with the reference's recipe.yaml",
        evidence=tuple(lines[:_SHOWN]),
    )


def _data(reference: Side, candidate: Side) -> Finding:
    """2: did both see the same rows, step by step?"""
    by_step = dict(zip(candidate.curve.steps.tolist(), candidate.curve.batch_hashes, strict=True))
    common = [
        (step, ours, by_step[step])
        for step, ours in zip(reference.curve.steps.tolist(), reference.curve.batch_hashes, strict=True)
        if ours and by_step.get(step)
    ]
    if common:
        parted = [each for each in common if each[1] != each[2]]
        if not parted:
            return ok("data", f"the batches of {len(common):,} steps are the same")
        return Finding(
            "data",
            "failure",
            f"the batch of step {parted[0][0]} holds other rows or other tokens",
            remedy="compare data.json and `recipe.yaml` of both: seed, order of files, template, max_length, packing",
            evidence=tuple(f"step {step}: {ours} and {other}" for step, ours, other in common if ours != other)[
                :_SHOWN
            ],
        )
    hashes = [side.run.get("data_hash") for side in (reference, candidate)]
    if all(hashes) and hashes[0] == hashes[1]:
        return ok("data", "the tokens are the same (data_hash); batches were not recorded")
    return unknown(
        "data", "a side has not recorded its batches", remedy="train with align.batch_hash: true on both sides"
    )


def _start(reference: Side, candidate: Side) -> Finding:
    """3: did both start from the same weights?"""
    hashes = [_hashes(side) for side in (reference, candidate)]
    if all(hashes):
        common = [name for name in hashes[0] if name in hashes[1]]
        other = [name for name in common if hashes[0][name] != hashes[1][name]]
        if not common:
            return unknown("start", "the weights of the sides have no name in common")
        if not other:
            return ok("start", f"both started from the same weights: {count_of(len(common), 'parameter')}")
        return Finding(
            "start",
            "failure",
            f"{len(other):,} of {count_of(len(common), 'parameter')} differ before the first step: {other[0]}",
            remedy="compare the models' files (sha256), the seed of new weights such as adapters, and what changes "
            "weights at load",
            evidence=tuple(f"{name}: {hashes[0][name]} and {hashes[1][name]}" for name in other[:_SHOWN]),
        )
    first, second = ((side.run.get("weights_hash"), side.adapters) for side in (reference, candidate))
    if first[0] and first == second:
        return ok("start", "both started from the same files of weights")
    if first[1] != second[1] and first[0] and second[0]:
        return Finding(
            "start",
            "failure",
            "the adapters that training went on from are different files",
            remedy="give both the same adapters in method.lora.start_from",
        )
    return unknown("start", "the files of weights lie on different disks, and their content was not recorded")


def _hashes(side: Side) -> dict[str, str]:
    found = side.start_weights.get("parameters")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _forward(pair: Pair, noise: Noise, exceeding: int | None) -> Finding:
    """4: does the same model give the same loss before any update?"""
    if not len(pair.steps) or pair.steps[0] != 1:
        return unknown(
            "forward",
            f"the first step recorded by both is {pair.steps[0]}" if len(pair.steps) else "no step has both losses",
            remedy="record step 1: track.every_steps: 1, or logging_first_step: true in the other trainer",
        )
    if np.isnan(pair.reference[0]) and np.isnan(pair.candidate[0]):
        return unknown("forward", "the loss of step 1 is not a number on either side")
    difference, limit = float(pair.difference[0]), noise.loss
    apart = f", {difference:.2g} apart" if np.isfinite(difference) else ""
    said = f"loss of step 1: {pair.reference[0]:.9g} and {pair.candidate[0]:.9g}{apart}"
    if exceeding != 1:
        return ok("forward", f"{said} (limit {limit:.2g})")
    return Finding(
        "forward",
        "failure",
        said,
        expected=f"at most {limit:.2g} from rounding ({noise.basis})",
        remedy="weights or forward pass differ: compare the models' files (sha256), dtype, attention, template, and "
        "what the loss is a mean over",
    )


def _backward(reference: Side, candidate: Side, noise: Noise) -> Finding:
    """5: does the same loss give the same gradient?"""
    curves = reference.curve, candidate.curve
    norms = [float(each.grad_norms[0]) if 1 in each.steps[:1] else np.nan for each in curves]
    if not np.isfinite(norms).all():
        return unknown("backward", "the gradient norm of step 1 was not recorded by both sides")
    difference = abs(norms[1] - norms[0]) / max(abs(norms[0]), 1e-12)
    said = f"gradient norm of step 1: {norms[0]:.9g} and {norms[1]:.9g}, {difference:.2g} apart"
    limit = noise.grad_norm + (1e-3 if reference.is_foreign or candidate.is_foreign else 0)
    if difference <= limit:
        return ok("backward", f"{said} (limit {limit:.2g})")
    return Finding(
        "backward",
        "failure",
        said,
        expected=f"at most {limit:.2g} from rounding ({noise.basis})",
        remedy="the backward pass, or the mean over ranks and accumulation, differs: compare with one device and "
        "batch.accumulate: 1",
    )


def _first_other_rate(reference: Side, candidate: Side) -> tuple[int, float, float] | None:
    """The first step whose learning rates differ, and both; None where none does, or a side is not ours."""
    if reference.is_foreign or candidate.is_foreign:
        return None
    rates = [side.curve.learning_rates for side in (reference, candidate)]
    steps, first, second = np.intersect1d(
        reference.curve.steps, candidate.curve.steps, assume_unique=True, return_indices=True
    )
    one, other = rates[0][first], rates[1][second]
    known = np.isfinite(one) & np.isfinite(other)
    apart = np.flatnonzero(known & (np.abs(one - other) > 1e-9 * np.maximum(np.abs(one), 1e-30)))
    return (int(steps[apart[0]]), float(one[apart[0]]), float(other[apart[0]])) if len(apart) else None


def _update(other_rate: tuple[int, float, float] | None, pair: Pair, exceeding: int | None) -> Finding:
    """6: does the same gradient make the same update?"""
    if other_rate is not None:
        step, one, other = other_rate
        return Finding(
            "update",
            "failure",
            f"learning rate of step {step}: {one:.6g} and {other:.6g}",
            remedy="compare optim.learning_rate, scheduler, warm-up and the number of steps",
        )
    # The first update shows in the loss of the step after it, with warm-up one later.
    early = pair.steps[(pair.steps > 1) & (pair.steps <= 3)]
    if exceeding is not None and exceeding in early:
        return Finding(
            "update",
            "failure",
            f"the losses part at step {exceeding}, right after the first updates",
            remedy="the optimizer differs: compare betas, epsilon, weight decay, clipping, and the dtype of its state",
        )
    if not len(early):
        return unknown("update", "steps 2 and 3 were not recorded by both sides")
    return ok("update", "the losses right after the first updates agree")


def _later(pair: Pair, noise: Noise, exceeding: int | None) -> Finding:
    """7: do the curves stay together?"""
    relative = pair.relative
    if not np.isfinite(relative).any():
        return unknown("later", "no step has a number on both sides")
    mean, largest = float(np.nanmean(relative)), float(np.nanmax(relative))
    at = int(pair.steps[int(np.nanargmax(relative))])
    said = f"{len(pair.steps):,} losses differ by {mean:.2%} on average, at most {largest:.2%} at step {at}"
    accepted = [
        f"verl's limit for the mean, {VERL_LIMIT:.0%}: {'kept' if mean < VERL_LIMIT else 'exceeded'}",
        f"the Ascend community's limit, {ASCEND_LIMIT:.0%}: {'kept' if mean < ASCEND_LIMIT else 'exceeded'}",
    ]
    if exceeding is None and (pair.difference > noise.band(pair.steps)).any():
        return Finding(
            "later",
            "warning",
            f"{said}; the difference begins as rounding and grows with every step: this training amplifies it",
            remedy="lower the learning rate, or give repeated reference runs with --noise-runs to measure the noise",
            evidence=tuple(accepted),
        )
    if exceeding is None:
        return ok("later", said, evidence=accepted)
    return Finding(
        "later",
        "failure",
        f"{said}; beyond rounding from step {exceeding} on",
        expected=f"within the noise of {noise.basis}",
        remedy="repeat the reference twice and give both runs with --noise-runs: then the band is measured",
        evidence=tuple(accepted),
    )


def _ranks(reference: Side, candidate: Side, exceeding: int | None) -> Finding:
    """8: does the number of ranks make a difference, and did all begin with the same weights?"""
    for side in (candidate, reference):
        of_rank = side.start_weights.get("ranks")
        if isinstance(of_rank, list) and len(set(map(str, of_rank))) > 1:
            return Finding(
                "ranks",
                "failure",
                f"the ranks of {side.name} began with different weights",
                remedy="check what loads and broadcasts the weights, and whether every rank reads the same files",
                evidence=tuple(f"rank {rank}: {each}" for rank, each in enumerate(of_rank[: 2 * _SHOWN])),
            )
    sizes = [side.world_size for side in (reference, candidate)]
    if None in sizes:
        return unknown("ranks", "a side does not record its number of ranks")
    if sizes[0] == sizes[1]:
        return ok("ranks", f"both with {sizes[0]} rank{'s' if sizes[0] != 1 else ''}")
    said = f"{sizes[0]} and {sizes[1]} ranks"
    if exceeding is None:
        return ok("ranks", f"{said}, and the losses agree")
    return unknown("ranks", said, remedy="train the candidate with as many ranks: it tells reduction from computation")


def exit_code(comparison: Comparison) -> int:
    """0 aligned, 1 parted."""
    return int(comparison.parted is not None)
