"""The finding on the curves of losses of two trainings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ascendtune.check.align.language import percent, say
from ascendtune.check.align.loss_noise import LossNoise
from ascendtune.check.align.one_sided import OneSided, dump_remedy, hidden_by_rounding, losses_lie_on_one_side
from ascendtune.check.align.paired_losses import PairedLosses
from ascendtune.check.align.record_phrases import (
    kinds_of_records,
    names_of_sides,
    records_alone,
    records_without_numbers,
    sides_without_loss,
    steps_of_record,
)
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.finding import Finding, failure, ok, unknown, warning

VERL_LIMIT = 0.02
"""Mean relative difference of losses that verl accepts between NPU and GPU."""
ASCEND_LIMIT = 0.05
"""The same in the acceptance rule of the Ascend community (verl-ascend-recipe, issue 74)."""


def later(
    reference: TrainingRecord,
    candidate: TrainingRecord,
    pair: PairedLosses,
    noise: LossNoise,
    exceeding: int | None,
    one_sided: OneSided | None,
    recipe_remedy: str | None,
) -> Finding:
    """7: whether the curves agree.

    Args:
        recipe_remedy: the remedy if the recipes differ; None if they are the same.
    """
    if lacking := sides_without_loss(reference, candidate):
        return unknown("later", say("{names} recorded no loss", names=names_of_sides(lacking)))
    relative = pair.relative
    if not pair.is_certain and not len(pair.steps):
        return unknown(
            "later",
            say("the losses differ, but the records may be of different kinds"),
            remedy=say("record every step on both sides: track.every_steps: 1, or logging_steps: 1"),
            evidence=kinds_of_records(pair, reference, candidate),
        )
    if not np.isfinite(relative).any():
        return unknown("later", say("no step has a number on both sides"))
    mean, largest = float(np.nanmean(relative)), float(np.nanmax(relative))
    at = int(pair.steps[int(np.nanargmax(relative))])
    measured = say(
        "{count:,} {count:loss differs|losses differ} by {mean} on average, at most {largest} at step {step}",
        count=len(pair.steps) - len(pair.without_numbers),
        mean=percent(mean),
        largest=percent(largest),
        step=at,
    )
    alone = ((reference, pair.reference_alone), (candidate, pair.candidate_alone))
    accepted = [
        *kinds_of_records(pair, reference, candidate),
        *(records_alone(side, steps) for side, steps in alone if len(steps)),
        *([records_without_numbers(pair.without_numbers)] if len(pair.without_numbers) else []),
        say(
            "verl's limit for the mean, {limit:.0%}: kept"
            if mean < VERL_LIMIT
            else "verl's limit for the mean, {limit:.0%}: exceeded",
            limit=VERL_LIMIT,
        ),
        say(
            "the Ascend community's limit, {limit:.0%}: kept"
            if mean < ASCEND_LIMIT
            else "the Ascend community's limit, {limit:.0%}: exceeded",
            limit=ASCEND_LIMIT,
        ),
    ]
    if exceeding is not None:
        return _parted(pair, noise, exceeding, measured, accepted, recipe_remedy)
    if one_sided is not None:
        is_proof = {reference.kind, candidate.kind} <= {"ascendtune", "recorded"}
        remedy = recipe_remedy or dump_remedy()
        return losses_lie_on_one_side(one_sided, measured, remedy, tuple(accepted), is_proof=is_proof)
    if (pair.difference > noise.band(pair.steps)).any():
        return warning(
            "later",
            say(
                "{measured}; the difference begins as rounding and grows with every step: this training amplifies it",
                measured=measured,
            ),
            remedy=recipe_remedy
            or say("lower the learning rate, or give repeated reference runs with --noise-runs to measure the noise"),
            evidence=accepted,
        )
    if mean >= VERL_LIMIT and noise.measured is None:
        return warning(
            "later",
            say(
                "{measured}; rounding of {basis} may explain it, but verl accepts less",
                measured=measured,
                basis=noise.basis,
            ),
            remedy=recipe_remedy
            or say("repeat the reference and give the runs with --noise-runs, or compare both sides in fp32"),
            evidence=accepted,
        )
    if noise.dtype != "fp32":
        has_dumps = reference.dump is not None and candidate.dump is not None
        accepted.append(hidden_by_rounding(noise, len(pair.steps), has_dumps=has_dumps))
    return ok("later", measured, evidence=accepted)


def _parted(
    pair: PairedLosses,
    noise: LossNoise,
    exceeding: int,
    measured: str,
    accepted: Sequence[str],
    recipe_remedy: str | None,
) -> Finding:
    """The failure of `later`; `measured`: the numbers of both curves in words."""
    if np.isnan(pair.difference[pair.steps == exceeding]).any():
        return failure(
            "later",
            say(
                "{measured}; the loss of step {step} is NaN or infinite on one side", measured=measured, step=exceeding
            ),
            expected=say("a number on both sides"),
            remedy=say("find the first module that makes it: ascendtune align nan RUN"),
            evidence=accepted,
        )
    measure = recipe_remedy or say(
        "repeat the reference twice and give both runs with --noise-runs: then the band is measured"
    )
    if not (pair.difference > noise.band(pair.steps)).any():
        return failure(
            "later",
            measured,
            expected=say("at most {limit:.0%} on average, even if rounding may explain more", limit=ASCEND_LIMIT),
            remedy=measure,
            evidence=accepted,
        )
    return failure(
        "later",
        say("{measured}; beyond rounding from {which} on", measured=measured, which=steps_of_record(pair, exceeding)),
        expected=say("within the noise of {basis}", basis=noise.basis),
        remedy=measure,
        evidence=accepted,
    )
