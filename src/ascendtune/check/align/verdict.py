"""The comparison in one sentence, in English or Chinese."""

from __future__ import annotations

import numpy as np

from ascendtune.check.align.language import say
from ascendtune.check.align.record_phrases import (
    records_alone,
    records_without_numbers,
    reduced_products,
    resumed_before,
    steps_of_record,
)
from ascendtune.check.align.stages import TrainingComparison
from ascendtune.check.align.training_record import TrainingRecord


def verdict(comparison: TrainingComparison, reference: TrainingRecord, candidate: TrainingRecord) -> str:
    """One sentence; if the trainings are aligned, it includes the records that were not compared."""
    sentence = _verdict(comparison, reference, candidate)
    pair = comparison.pair
    if comparison.divergence is not None:
        for resumed in resumed_before(comparison.step, reference, candidate):
            sentence = say("{measured}; {further}", measured=sentence, further=resumed)
    if comparison.divergence is not None or not len(pair.steps):
        return sentence
    for products in reduced_products(reference, candidate):
        sentence = say("{measured}; {further}", measured=sentence, further=products)
    for hint in comparison.hints:
        sentence = say("{measured}; {further}", measured=sentence, further=hint.measured)
    for side, steps in ((reference, pair.reference_alone), (candidate, pair.candidate_alone)):
        if len(steps):
            sentence = say("{measured}; {further}", measured=sentence, further=records_alone(side, steps))
    if len(steps := pair.without_numbers):
        sentence = say("{measured}; {further}", measured=sentence, further=records_without_numbers(steps))
    return sentence


def _which(comparison: TrainingComparison) -> str:
    """The step, or the steps of the first record, at which the trainings diverge."""
    if comparison.is_one_sided:
        return say("step {step} and after it", step=comparison.step)
    if comparison.divergence is not None and comparison.divergence.code == "later" and comparison.step is not None:
        return steps_of_record(comparison.pair, comparison.step)
    return say("step {step}", step=comparison.step)


def _verdict(comparison: TrainingComparison, reference: TrainingRecord, candidate: TrainingRecord) -> str:
    sides = {"reference": reference.name, "candidate": candidate.name}
    divergence, dumps = comparison.divergence, comparison.dumps
    if divergence is not None and dumps.place is not None and dumps.place.stage == divergence.code:
        return say("{reference} and {candidate} diverge at {place}", place=divergence.measured, **sides)
    if divergence is not None:
        return say(
            "{reference} and {candidate} diverge at {which}, {stage}: {reason}",
            which=_which(comparison),
            stage=say(divergence.code),
            reason=divergence.measured,
            **sides,
        )
    if not len(comparison.pair.steps):
        return say(
            "{reference} and {candidate} are aligned: {count:,} dumped {count:tensor agrees|tensors agree} "
            "within rounding; no losses were compared",
            count=dumps.compared,
            **sides,
        )
    if not np.nanmax(comparison.pair.difference, initial=0.0):
        count = len(comparison.pair.steps) - len(comparison.pair.without_numbers)
        return say(
            "{reference} and {candidate} are aligned: {count:,} {count:loss is|losses are} equal to the last digit",
            count=count,
            **sides,
        )
    return say(
        "{reference} and {candidate} are aligned within the noise of {basis}", basis=comparison.noise.basis, **sides
    )
