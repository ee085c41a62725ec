"""A finding for each stage of a comparison, from the records of two trainings without their dumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ascendtune.check.align.adam_updates import AdamCheck
from ascendtune.check.align.language import say
from ascendtune.check.align.loss_noise import LossNoise
from ascendtune.check.align.one_sided import (
    OneSided,
    hidden_by_rounding,
    losses_lie_on_one_side,
    norms_lie_on_one_side,
    to_tell,
)
from ascendtune.check.align.paired_losses import PairedLosses
from ascendtune.check.align.record_phrases import (
    kinds_of_records,
    names_of_sides,
    records_alone,
    records_without_numbers,
    steps_of_record,
)
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.align.update_findings import other_update, same_updates
from ascendtune.check.finding import Finding, failure, ok, unknown, warning

_SHOWN = 5
VERL_LIMIT = 0.02
"""Mean relative difference of losses that verl accepts between NPU and GPU."""
ASCEND_LIMIT = 0.05
"""The same in the acceptance rule of the Ascend community (verl-ascend-recipe, issue 74)."""


def data(reference: TrainingRecord, candidate: TrainingRecord) -> Finding:
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
            return ok("data", say("the batches of {count:,} steps are the same", count=len(common)))
        return failure(
            "data",
            say("the batch of step {step} holds other rows, other tokens or another order", step=parted[0][0]),
            remedy=say(
                "compare data.json and recipe.yaml of both: seed, order of files, template, max_length, packing"
            ),
            evidence=tuple(
                say("step {step}: {one} and {other}", step=step, one=ours, other=other)
                for step, ours, other in parted[:_SHOWN]
            ),
        )
    hashes = [side.run.get("data_hash") for side in (reference, candidate)]
    if all(hashes) and hashes[0] == hashes[1]:
        return ok("data", say("the tokens are the same (data_hash); batches were not recorded"))
    if lacking := [side for side in (reference, candidate) if not any(side.curve.batch_hashes)]:
        remedy = _recording(lacking)
        if remedy is None and not all(side.is_foreign for side in lacking):
            remedy = say("train with align.batch_hash: true on both sides")
        return unknown("data", say("{names} recorded no batches", names=names_of_sides(lacking)), remedy=remedy)
    return unknown("data", say("no step has the batches of both sides"))


def start(reference: TrainingRecord, candidate: TrainingRecord) -> Finding:
    """3: did both start from the same weights?"""
    hashes = [_hashes(side) for side in (reference, candidate)]
    if all(hashes):
        common = [name for name in hashes[0] if name in hashes[1]]
        other = [name for name in common if hashes[0][name] != hashes[1][name]]
        if not common:
            return unknown("start", say("the weights of the sides have no name in common"))
        alone = (*_only_in(reference.name, *hashes), *_only_in(candidate.name, *reversed(hashes)))
        if not other:
            said = say("both started from the same weights: {count:,} parameters", count=len(common))
            return ok("start", said, evidence=alone)
        return failure(
            "start",
            say(
                "{count:,} of {total:,} parameters differ before the first step: {first}",
                count=len(other),
                total=len(common),
                first=other[0],
            ),
            remedy=say(
                "compare the models' files (sha256), the seed of new weights such as adapters, and what changes "
                "weights at load"
            ),
            evidence=(
                *(
                    say("{key}: {one} and {other}", key=name, one=hashes[0][name], other=hashes[1][name])
                    for name in other[:_SHOWN]
                ),
                *alone,
            ),
        )
    first, second = ((side.run.get("weights_hash"), side.adapters) for side in (reference, candidate))
    if first[0] and first == second:
        return ok("start", say("both started from the same files of weights"))
    if first[1] != second[1] and first[0] and second[0]:
        return failure(
            "start",
            say("the adapters that training went on from are different files"),
            remedy=say("give both the same adapters in start_from"),
        )
    if lacking := [side for side in (reference, candidate) if not _hashes(side) and not side.run.get("weights_hash")]:
        said = say("{names} recorded no weights", names=names_of_sides(lacking))
        return unknown("start", said, remedy=_recording(lacking))
    return unknown(
        "start", say("the files of weights have other names, sizes or times, and their content was not recorded")
    )


def _only_in(name: str, parameters: Mapping[str, str], others: Mapping[str, str]) -> tuple[str, ...]:
    """The parameters, of any shape, that the side `name` alone has, in a sentence; empty where there are none."""
    found = [each for each in parameters if each not in others]
    listed = ", ".join(found[:_SHOWN])
    return (say("only in {name} ({count:,}): {first}", name=name, count=len(found), first=listed),) if found else ()


def _hashes(side: TrainingRecord) -> dict[str, str]:
    found = side.start_weights.get("parameters")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def forward(
    reference: TrainingRecord, candidate: TrainingRecord, pair: PairedLosses, noise: LossNoise, exceeding: int | None
) -> Finding:
    """4: does the same model give the same loss before any update?"""
    if lacking := _without_loss(reference, candidate):
        said = say("{names} recorded no loss", names=names_of_sides(lacking))
        return unknown("forward", said, remedy=_recording(lacking))
    if not len(pair.steps) or pair.steps[0] != 1:
        return unknown(
            "forward",
            say("the first step recorded by both is {step}", step=pair.steps[0])
            if len(pair.steps)
            else say("no step has both losses"),
            remedy=say("record step 1: track.every_steps: 1, or logging_first_step: true in the other trainer"),
        )
    if np.isnan(pair.reference[0]) and np.isnan(pair.candidate[0]):
        return unknown("forward", say("the loss of step 1 is not a number on either side"))
    difference, limit = float(pair.difference[0]), noise.loss
    said = say("loss of step 1: {one:.9g} and {other:.9g}", one=pair.reference[0], other=pair.candidate[0])
    if np.isfinite(difference):
        said = say("{measured}, {difference:.2g} apart", measured=said, difference=difference)
    if exceeding != 1:
        return ok("forward", say("{measured} (limit {limit:.2g})", measured=said, limit=limit))
    return failure(
        "forward",
        said,
        expected=say("at most {limit:.2g} from rounding ({basis})", limit=limit, basis=noise.basis),
        remedy=say(
            "weights or forward pass differ: compare the models' files (sha256), dtype, attention, template, and "
            "what the loss is a mean over"
        ),
    )


def backward(
    reference: TrainingRecord, candidate: TrainingRecord, noise: LossNoise, one_sided: OneSided | None
) -> Finding:
    """5: does the same loss give the same gradient?"""
    sides = reference, candidate
    norms = [float(each.curve.grad_norms[0]) if 1 in each.curve.steps[:1] else np.nan for each in sides]
    if lacking := [side for side, norm in zip(sides, norms, strict=True) if not np.isfinite(norm)]:
        said = say("{names} recorded no gradient norm of step 1", names=names_of_sides(lacking))
        return unknown("backward", said, remedy=_recording(lacking))
    difference = abs(norms[1] - norms[0]) / max(abs(norms[0]), 1e-12)
    said = say(
        "gradient norm of step 1: {one:.9g} and {other:.9g}, {difference:.2g} apart",
        one=norms[0],
        other=norms[1],
        difference=difference,
    )
    limit = noise.grad_norm + (1e-3 if reference.is_foreign or candidate.is_foreign else 0)
    if difference <= limit and one_sided is not None:
        return norms_lie_on_one_side(one_sided)
    if difference <= limit:
        return ok("backward", say("{measured} (limit {limit:.2g})", measured=said, limit=limit))
    return failure(
        "backward",
        said,
        expected=say("at most {limit:.2g} from rounding ({basis})", limit=limit, basis=noise.basis),
        remedy=say(
            "the backward pass, or the mean over ranks and accumulation, differs: compare with one device and "
            "batch.accumulate: 1"
        ),
    )


def update(
    reference: TrainingRecord,
    candidate: TrainingRecord,
    other_rate: tuple[int, float, float] | None,
    adam: AdamCheck | None,
    pair: PairedLosses,
    exceeding: int | None,
) -> Finding:
    """6: does the same gradient make the same update?"""
    if other_rate is not None:
        step, one, other = other_rate
        return failure(
            "update",
            say("learning rate of step {step}: {one:.6g} and {other:.6g}", step=step, one=one, other=other),
            remedy=say("compare optim.learning_rate, scheduler, warm-up and the number of steps"),
        )
    if adam is not None and not adam.is_same:
        return other_update(adam)
    # The first update shows in the loss of the step after it, with warm-up one later.
    early = pair.steps[(pair.steps > 1) & (pair.steps <= 3) & pair.is_single]
    if exceeding is not None and exceeding in early:
        return failure(
            "update",
            say("the losses part at step {step}, right after the first updates", step=exceeding),
            remedy=say(
                "the optimizer differs: compare betas, epsilon, weight decay, clipping, and the dtype of its state"
            ),
        )
    if not len(early):
        lacking = [side for side in (reference, candidate) if not np.isin((2, 3), side.curve.steps).any()]
        if lacking:
            return unknown("update", say("{names} recorded no loss of steps 2 and 3", names=names_of_sides(lacking)))
        return unknown("update", say("steps 2 and 3 were not recorded by both sides"))
    return ok("update", say("the losses right after the first updates agree"), evidence=same_updates(adam))


def later(
    reference: TrainingRecord,
    candidate: TrainingRecord,
    pair: PairedLosses,
    noise: LossNoise,
    exceeding: int | None,
    one_sided: OneSided | None,
    to_ask_the_same: str | None,
) -> Finding:
    """7: do the curves stay together?

    Args:
        to_ask_the_same: the remedy where the sides were not asked for the same; None where they were.
    """
    if lacking := _without_loss(reference, candidate):
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
    said = say(
        "{count:,} losses differ by {mean:.2%} on average, at most {largest:.2%} at step {step}",
        count=len(pair.steps) - len(pair.without_numbers),
        mean=mean,
        largest=largest,
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
        return _parted(pair, noise, exceeding, said, accepted, to_ask_the_same)
    if one_sided is not None:
        is_proof = {reference.kind, candidate.kind} <= {"ascendtune", "recorded"}
        remedy = to_ask_the_same or to_tell()
        return losses_lie_on_one_side(one_sided, said, remedy, tuple(accepted), is_proof=is_proof)
    if (pair.difference > noise.band(pair.steps)).any():
        return warning(
            "later",
            say(
                "{measured}; the difference begins as rounding and grows with every step: this training amplifies it",
                measured=said,
            ),
            remedy=to_ask_the_same
            or say("lower the learning rate, or give repeated reference runs with --noise-runs to measure the noise"),
            evidence=accepted,
        )
    if mean >= VERL_LIMIT and noise.measured is None:
        return warning(
            "later",
            say(
                "{measured}; rounding of {basis} may explain it, but verl accepts less",
                measured=said,
                basis=noise.basis,
            ),
            remedy=to_ask_the_same
            or say("repeat the reference and give the runs with --noise-runs, or compare both sides in fp32"),
            evidence=accepted,
        )
    if noise.dtype != "fp32":
        has_dumps = reference.dump is not None and candidate.dump is not None
        accepted.append(hidden_by_rounding(noise, len(pair.steps), has_dumps=has_dumps))
    return ok("later", said, evidence=accepted)


def _parted(
    pair: PairedLosses,
    noise: LossNoise,
    exceeding: int,
    said: str,
    accepted: Sequence[str],
    to_ask_the_same: str | None,
) -> Finding:
    """The failure of `later`; `said` is what was measured."""
    if np.isnan(pair.difference[pair.steps == exceeding]).any():
        return failure(
            "later",
            say("{measured}; the loss of step {step} is NaN or infinite on one side", measured=said, step=exceeding),
            expected=say("a number on both sides"),
            remedy=say("find the first module that makes it: ascendtune align nan RUN"),
            evidence=accepted,
        )
    measure = to_ask_the_same or say(
        "repeat the reference twice and give both runs with --noise-runs: then the band is measured"
    )
    if not (pair.difference > noise.band(pair.steps)).any():
        return failure(
            "later",
            said,
            expected=say("at most {limit:.0%} on average, whatever rounding may explain", limit=ASCEND_LIMIT),
            remedy=measure,
            evidence=accepted,
        )
    return failure(
        "later",
        say("{measured}; beyond rounding from {which} on", measured=said, which=steps_of_record(pair, exceeding)),
        expected=say("within the noise of {basis}", basis=noise.basis),
        remedy=measure,
        evidence=accepted,
    )


def ranks(reference: TrainingRecord, candidate: TrainingRecord, exceeding: int | None) -> Finding:
    """8: does the number of ranks make a difference, and did all begin with the same weights?"""
    for side in (candidate, reference):
        of_rank = side.start_weights.get("ranks")
        if isinstance(of_rank, list) and len(set(map(str, of_rank))) > 1:
            return failure(
                "ranks",
                say("the ranks of {name} began with different weights", name=side.name),
                remedy=say("check what loads and broadcasts the weights, and whether every rank reads the same files"),
                evidence=tuple(
                    say("rank {rank}: {value}", rank=rank, value=each)
                    for rank, each in enumerate(of_rank[: 2 * _SHOWN])
                ),
            )
    sizes = [side.world_size for side in (reference, candidate)]
    if lacking := [side for side in (reference, candidate) if side.world_size is None]:
        said = say("{names} recorded no number of ranks", names=names_of_sides(lacking))
        return unknown("ranks", said, remedy=_recording(lacking))
    if sizes[0] == sizes[1]:
        return ok("ranks", say("both with 1 rank" if sizes[0] == 1 else "both with {count} ranks", count=sizes[0]))
    both: dict[str, object] = {"one": sizes[0], "other": sizes[1]}
    if exceeding is None:
        return ok("ranks", say("{one} and {other} ranks, and the losses agree", **both))
    return unknown(
        "ranks",
        say("{one} and {other} ranks", **both),
        remedy=say("train the candidate with as many ranks: it tells reduction from computation"),
    )


def _recording(sides: Sequence[TrainingRecord]) -> str | None:
    """The remedy where one of `sides` is a log, which has losses alone; None where none is."""
    if not any(side.is_foreign and not side.run for side in sides):
        return None
    return say("record the other trainer: ascendtune align record -- COMMAND")


def _without_loss(*sides: TrainingRecord) -> list[TrainingRecord]:
    return [side for side in sides if not len(side.curve.steps)]
