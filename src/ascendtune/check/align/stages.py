"""The stages of a comparison, in order; the first one that differs explains the later differences.

The result of each is a finding: `ok`, `failure` if the two trainings diverge there, `warning` if different things were
requested and no number shows an effect, `unknown` if one side recorded nothing to compare.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align import curve_findings, input_findings, stage_findings
from ascendtune.check.align.adam_updates import AdamCheck, adam_settings, check_adam
from ascendtune.check.align.amplified import is_amplified
from ascendtune.check.align.dump_comparison import DumpComparison, FirstDifference, compare_dumps
from ascendtune.check.align.language import percent, say
from ascendtune.check.align.loss_noise import LossNoise, extra_noise
from ascendtune.check.align.one_sided import OneSided, one_sided_losses, one_sided_norms
from ascendtune.check.align.paired_losses import PairedLosses, pair_losses
from ascendtune.check.align.question import question
from ascendtune.check.align.record_phrases import (
    kinds_of_records,
    reduced_products,
    restored_remedy,
    resumed_before,
    suspected_products,
)
from ascendtune.check.align.stage_findings import OtherRate
from ascendtune.check.align.tensor_findings import with_dump_evidence
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.finding import Finding
from ascendtune.core.errors import NoVerdict
from ascendtune.recipe.changes import kind_of_loss

_CAUSES = ("question", "data", "start")
"""Stages that compare the inputs of a training, not its results."""
_COMPUTED = frozenset(("forward", "backward", "update", "later"))
"""Stages whose differences can be consequences of those before."""
_HINTS = {"data": "failure", "start": "failure", "backward": "warning", "update": "warning", "later": "warning"}
"""Findings that the verdict names although no loss is beyond rounding, which may hide the effect of other inputs."""


@dataclass(frozen=True)
class TrainingComparison:
    """The result of a comparison of two trainings.

    Attributes:
        findings: one per stage, in the order of the stages.
        divergence: the finding that explains the difference; None if the losses agree.
        step: the first step at which the trainings differ.
        decisive_step: the step up to which they must be repeated to decide whether they still differ: a learning rate
            may differ long before the losses do.
        dumps: comparison of the tensors that both sides dumped; empty if a side has none.
    """

    pair: PairedLosses
    noise: LossNoise
    findings: tuple[Finding, ...]
    divergence: Finding | None
    step: int | None
    dumps: DumpComparison = field(default_factory=DumpComparison)
    decisive_step: int | None = None
    is_one_sided: bool = False
    hints: tuple[Finding, ...] = ()

    @property
    def mean_difference(self) -> float | None:
        """Mean over the steps of |candidate - reference| / |reference|; None if no step has a number on both sides."""
        known = self.pair.relative[np.isfinite(self.pair.relative)]
        return float(known.mean()) if len(known) else None


def compare_trainings(
    reference: TrainingRecord, candidate: TrainingRecord, noise: LossNoise, dumps: DumpComparison | None = None
) -> TrainingComparison:
    """Evaluate all stages; the findings are in the current language.

    Args:
        dumps: tensors that have already been compared.

    Raises:
        NoVerdict: the losses are of different kinds, or no step was recorded or dumped by both sides.
        DataError, RecipeError, MachineError: a dump cannot be read.
    """
    _require_same_kind(reference, candidate)
    pair = pair_losses(reference.curve, candidate.curve)
    if dumps is None:
        dumps = _compared_dumps(reference, candidate)
    if not dumps.compared and not (np.isfinite(pair.reference) | np.isfinite(pair.candidate)).any():
        raise NoVerdict(
            "no step that both sides recorded has a loss",
            code="no-common-steps",
            remedy="record the same steps: track.every_steps, or logging_steps: 1 in the other trainer",
            where=f"{reference.path} and {candidate.path}",
        )
    exceeding = _exceeding(pair, noise)
    if exceeding is not None and not pair.is_certain:
        pair, exceeding = _without_unlike_means(pair, reference, candidate, dumps), None
    other_batch = input_findings.first_other_batch(reference, candidate)
    recorded = _Recorded(
        exceeding,
        one_sided_losses(pair, noise) if exceeding is None else None,
        _first_other_rate(reference, candidate),
        other_batch,
        other_batch is not None and input_findings.batches_moved(reference, candidate, other_batch) is not None,
    )
    dumps = _without_explained_place(dumps, recorded)
    findings = _findings(reference, candidate, pair, noise, recorded, dumps)
    is_apart = recorded.has_moved or any(each.status == "failure" and each.code not in _CAUSES for each in findings)
    if dumps.place is None and not is_apart:
        # Different recipes or data without an effect on the results are warnings.
        hints = tuple(each for each in findings if _HINTS.get(each.code) == each.status)
        return TrainingComparison(pair, noise, tuple(map(_as_warning, findings)), None, None, dumps, hints=hints)
    divergence = next(each for each in findings if each.status == "failure")
    if dumps.place is not None and divergence.code not in _CAUSES:
        # The dump knows which stage differs first; later ones follow from it.
        divergence = next(each for each in findings if each.code == dumps.place.stage)
    step, decisive_step = _steps_apart(divergence, recorded, dumps, pair)
    if resumed_before(step, reference, candidate) and divergence.code not in (*_CAUSES, "ranks"):
        at = findings.index(divergence)
        divergence = replace(divergence, remedy=restored_remedy())
        findings = (*findings[:at], divergence, *findings[at + 1 :])
    if divergence.code != "question":
        # Settings that differ are a cause of their own.
        has_settings = recorded.other_rate is not None or (dumps.adam is not None and dumps.adam.other is not None)
        findings = _with_consequences(findings, divergence, _COMPUTED - ({"update"} if has_settings else set()))
    is_one_sided = divergence.code == "later" and recorded.one_sided is not None
    if is_one_sided:
        decisive_step = int(pair.steps[-1])
    return TrainingComparison(pair, noise, findings, divergence, step, dumps, decisive_step, is_one_sided)


@dataclass(frozen=True)
class _Recorded:
    """Differences that the records of two trainings show, without their tensors.

    Attributes:
        exceeding: the first step whose losses differ by more than rounding explains.
        one_sided: losses that lie on one side, if none exceeds its limit.
        other_rate: the first step with another learning rate.
        other_batch: the first step with another batch.
        has_moved: whether the batches are the same from another step on.
    """

    exceeding: int | None
    one_sided: OneSided | None
    other_rate: OtherRate | None
    other_batch: int | None
    has_moved: bool


def _compared_dumps(reference: TrainingRecord, candidate: TrainingRecord) -> DumpComparison:
    if reference.dump is None or candidate.dump is None:
        return DumpComparison()
    dumps = compare_dumps(reference.dump, candidate.dump, extra_noise(reference, candidate))
    if (settings := adam_settings(reference.recipe, reference.run)) is None:
        return dumps
    return _with_adam(dumps, check_adam(reference.dump, candidate.dump, settings))


def _without_explained_place(dumps: DumpComparison, recorded: _Recorded) -> DumpComparison:
    """`dumps` without a `place` that the records explain, or with another stage for it."""
    place = dumps.place
    if place is None:
        return dumps
    if recorded.exceeding is not None and recorded.exceeding <= place.step and place.follows_from_weights:
        return _as_consequence(dumps, place)
    if place.stage == "update" and recorded.other_rate is not None and recorded.other_rate.step <= place.step:
        # Another learning rate explains other updates.
        return replace(dumps, place=None)
    if place.stage != "data" or recorded.other_batch is None:
        return dumps
    if not place.has_other_rows:
        # Gradients of outputs with other shapes: the hashes of the batches show more.
        return replace(dumps, place=replace(place, stage="backward"))
    # Which batches they are says more than how many rows both have.
    return replace(dumps, place=None) if recorded.has_moved else dumps


def _findings(
    reference: TrainingRecord,
    candidate: TrainingRecord,
    pair: PairedLosses,
    noise: LossNoise,
    recorded: _Recorded,
    dumps: DumpComparison,
) -> tuple[Finding, ...]:
    """One finding per stage, in the order of the stages."""
    exceeding = recorded.exceeding
    requested = question(reference, candidate)
    # Repetitions of the reference do not explain what another recipe does.
    recipe_remedy = requested.remedy if requested.status == "failure" else None
    norms = one_sided_norms(reference.curve, candidate.curve, noise)
    from_records: tuple[Finding, ...] = (
        requested,
        input_findings.data(reference, candidate),
        input_findings.start(reference, candidate),
        stage_findings.forward(reference, candidate, pair, noise, exceeding),
        stage_findings.backward(reference, candidate, noise, norms),
        stage_findings.update(reference, candidate, recorded.other_rate, dumps.adam, pair, exceeding),
        curve_findings.later(reference, candidate, pair, noise, exceeding, recorded.one_sided, recipe_remedy),
        stage_findings.ranks(reference, candidate, exceeding),
    )
    findings = with_dump_evidence(from_records, dumps, suspected_products(reference, candidate))
    products = reduced_products(reference, candidate)
    return tuple(
        replace(each, evidence=(*products, *each.evidence)) if each.code == "forward" else each for each in findings
    )


def _steps_apart(
    divergence: Finding, recorded: _Recorded, dumps: DumpComparison, pair: PairedLosses
) -> tuple[int, int]:
    """The `step` and the `decisive_step` of a comparison."""
    if dumps.place is not None:
        first = last = dumps.place.step
    else:
        apart = [] if recorded.exceeding is None else [recorded.exceeding]
        if recorded.other_rate is not None:
            apart.append(recorded.other_rate.step)
        if dumps.adam is not None and dumps.adam.other is not None:
            apart.append(dumps.adam.steps)
        if recorded.one_sided is not None:
            apart.append(int(pair.steps[recorded.one_sided.first]))
        first, last = min(apart, default=1), max(apart, default=1)
    if divergence.code == "data" and recorded.other_batch is not None:
        if dumps.place is None or dumps.place.stage != "data":
            first = recorded.other_batch
    elif divergence.code == "backward" and dumps.place is None:
        # The gradient norm of step 1 differs, even if the losses differ only later.
        first = 1
    return first, last


def require_repetitions(reference: TrainingRecord, repeats: Sequence[TrainingRecord]) -> None:
    """Check that runs that measure the noise have the same recipe and the same rows as the reference.

    Raises:
        NoVerdict: the recipe or the data of a repetition differ from the reference's.
    """
    for repeat in repeats:
        for stage in (question, input_findings.data):
            if (finding := stage(reference, repeat)).status == "failure":
                raise NoVerdict(
                    f"this run does not repeat the reference: {finding.measured}",
                    code="not-a-repetition",
                    remedy="train the reference's recipe.yaml again, on the same data, for --noise-runs",
                    where=repeat.path,
                )


def _with_adam(dumps: DumpComparison, adam: AdamCheck | None) -> DumpComparison:
    """`dumps` with the comparison of the optimizers; differences after a different update follow from it."""
    place = dumps.place
    other_at = (adam.steps, "update") if adam is not None and adam.other is not None else None
    if (
        place is not None
        and other_at is not None
        and (other_at[0] < place.step or other_at == (place.step, place.stage))
    ):
        place = None
    return replace(dumps, adam=adam, place=place)


def _as_consequence(dumps: DumpComparison, place: FirstDifference) -> DumpComparison:
    """`dumps` with a `place` after the step at which the losses differ: it may be an effect of differing weights."""
    harmless = dumps.without_effect
    is_of_step = harmless is not None and harmless.step == place.step
    return replace(dumps, place=None, consequence=place, without_effect=None if is_of_step else harmless)


def _with_consequences(
    findings: tuple[Finding, ...], divergence: Finding, stages: Collection[str]
) -> tuple[Finding, ...]:
    """`findings` in which failures of `stages` after `divergence` refer to it: it may explain them."""
    after = findings.index(divergence) + 1
    remedy = say("mend {stage} first: this may follow from it", stage=divergence.code)
    later = (
        replace(each, remedy=remedy) if each.status == "failure" and each.code in stages else each
        for each in findings[after:]
    )
    return (*findings[:after], *later)


def _as_warning(finding: Finding) -> Finding:
    return replace(finding, status="warning") if finding.status == "failure" else finding


def _require_same_kind(reference: TrainingRecord, candidate: TrainingRecord) -> None:
    kinds = [kind_of_loss(side.recipe) for side in (reference, candidate) if side.recipe is not None]
    if len(set(kinds)) > 1:
        raise NoVerdict(
            f"the losses are of different kinds: {' and '.join(kinds)}",
            code="losses-differ",
            remedy="compare runs with the same method.stage and method.preference.loss",
        )


def _exceeding(pair: PairedLosses, noise: LossNoise) -> int | None:
    """The first step whose losses differ by more than rounding explains, or with NaN on one side only."""
    one_is_nan = np.isfinite(pair.reference) != np.isfinite(pair.candidate)
    is_beyond = (pair.difference > noise.band(pair.steps)) | one_is_nan
    if not is_beyond.any() and noise.measured is None:
        is_beyond = _unacceptable(pair)
    if not is_beyond.any():
        return None
    first = int(np.flatnonzero(is_beyond)[0])
    if not one_is_nan.any() and noise.measured is None and is_amplified(pair, noise, first):
        return None
    return int(pair.steps[first])


def _unacceptable(pair: PairedLosses) -> NDArray[np.bool_]:
    """(records,) those beyond the Ascend community's limit if the mean is: in bf16 the band of late steps is wider."""
    known = pair.difference[np.isfinite(pair.difference)]
    is_kept = not len(known) or known.mean() < curve_findings.ASCEND_LIMIT
    return np.asarray((pair.difference >= curve_findings.ASCEND_LIMIT) & (not is_kept))


def _without_unlike_means(
    pair: PairedLosses, reference: TrainingRecord, candidate: TrainingRecord, dumps: DumpComparison
) -> PairedLosses:
    """`pair` without its losses, whose difference proves nothing.

    Raises:
        NoVerdict: no tensors were compared either.
    """
    if not dumps.compared:
        mean = float(np.nanmean(pair.relative))
        raise NoVerdict(
            f"the losses differ by {percent(mean)} on average, but the records may be of different kinds: "
            + ", ".join(kinds_of_records(pair, reference, candidate)),
            code="records-of-different-kinds",
            remedy="record every step on both sides: track.every_steps: 1, or logging_steps: 1 in the other trainer",
            where=f"{reference.path} and {candidate.path}",
        )
    return pair.without_losses()


def _first_other_rate(reference: TrainingRecord, candidate: TrainingRecord) -> OtherRate | None:
    """The first step whose learning rates differ; None if there is none, or the kinds of logs differ.

    A log may contain the rate of the next step, and `align record` records that of the first group of parameters.
    """
    if reference.kind != candidate.kind or reference.kind not in ("ascendtune", "recorded"):
        return None
    same = 1e-9 if reference.kind == "ascendtune" else 1e-6  # Other loops may keep rates in fp32.
    rates = [side.curve.learning_rates for side in (reference, candidate)]
    steps, first, second = np.intersect1d(
        reference.curve.steps, candidate.curve.steps, assume_unique=True, return_indices=True
    )
    one, other = rates[0][first], rates[1][second]
    known = np.isfinite(one) & np.isfinite(other)
    differing = np.flatnonzero(known & (np.abs(one - other) > same * np.maximum(np.abs(one), 1e-30)))
    if not len(differing):
        return None
    at = differing[0]
    return OtherRate(int(steps[at]), float(one[at]), float(other[at]))


def exit_code(comparison: TrainingComparison) -> int:
    """0 if aligned, 1 if not."""
    return int(comparison.divergence is not None)
