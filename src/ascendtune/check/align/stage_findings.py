"""Findings on what two trainings computed: losses and gradients, updates, and ranks, without their dumps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ascendtune.check.align.adam_updates import AdamCheck
from ascendtune.check.align.language import say
from ascendtune.check.align.loss_noise import LossNoise
from ascendtune.check.align.one_sided import OneSided, norms_lie_on_one_side
from ascendtune.check.align.paired_losses import PairedLosses
from ascendtune.check.align.record_phrases import names_of_sides, sides_without_loss, suspected_products, to_record
from ascendtune.check.align.tensor_noise import REDUCED_PRODUCTS
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.align.update_findings import other_update, same_updates
from ascendtune.check.finding import Finding, failure, ok, unknown

_SHOWN = 10
"""Ranks whose weights are listed."""


class OtherRate(NamedTuple):
    """A step whose learning rates differ."""

    step: int
    reference: float
    candidate: float


def forward(
    reference: TrainingRecord, candidate: TrainingRecord, pair: PairedLosses, noise: LossNoise, exceeding: int | None
) -> Finding:
    """4: whether the same model gives the same loss before any update."""
    if lacking := sides_without_loss(reference, candidate):
        measured = say("{names} recorded no loss", names=names_of_sides(lacking))
        return unknown("forward", measured, remedy=to_record(lacking))
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
    measured = say("loss of step 1: {one:.9g} and {other:.9g}", one=pair.reference[0], other=pair.candidate[0])
    if np.isfinite(difference):
        measured = say("{measured}, {difference:.2g} apart", measured=measured, difference=difference)
    if exceeding != 1:
        return ok("forward", say("{measured} (limit {limit:.2g})", measured=measured, limit=limit))
    return failure(
        "forward",
        measured,
        expected=say("at most {limit:.2g} from rounding ({basis})", limit=limit, basis=noise.basis),
        remedy=say(
            "weights or forward pass differ: compare the models' files (sha256), dtype, attention, template, and "
            "what the loss is a mean over"
        ),
        evidence=suspected_products(reference, candidate)
        if noise.dtype == "fp32" and difference <= REDUCED_PRODUCTS * limit
        else (),
    )


def backward(
    reference: TrainingRecord, candidate: TrainingRecord, noise: LossNoise, one_sided: OneSided | None
) -> Finding:
    """5: whether the same loss gives the same gradient."""
    sides = reference, candidate
    norms = [float(each.curve.grad_norms[0]) if 1 in each.curve.steps[:1] else np.nan for each in sides]
    if lacking := [side for side, norm in zip(sides, norms, strict=True) if not np.isfinite(norm)]:
        measured = say("{names} recorded no gradient norm of step 1", names=names_of_sides(lacking))
        return unknown("backward", measured, remedy=to_record(lacking))
    difference = abs(norms[1] - norms[0]) / max(abs(norms[0]), 1e-12)
    measured = say(
        "gradient norm of step 1: {one:.9g} and {other:.9g}, {difference:.2g} apart",
        one=norms[0],
        other=norms[1],
        difference=difference,
    )
    limit = noise.grad_norm + (1e-3 if reference.is_foreign or candidate.is_foreign else 0)
    if difference <= limit and one_sided is not None:
        return norms_lie_on_one_side(one_sided)
    if difference <= limit:
        return ok("backward", say("{measured} (limit {limit:.2g})", measured=measured, limit=limit))
    return failure(
        "backward",
        measured,
        expected=say("at most {limit:.2g} from rounding ({basis})", limit=limit, basis=noise.basis),
        remedy=say(
            "the backward pass, or the mean over ranks and accumulation, differs: compare with one device and "
            "batch.accumulate: 1"
        ),
    )


def update(
    reference: TrainingRecord,
    candidate: TrainingRecord,
    other_rate: OtherRate | None,
    adam: AdamCheck | None,
    pair: PairedLosses,
    exceeding: int | None,
) -> Finding:
    """6: whether the same gradient gives the same update."""
    if other_rate is not None:
        return failure(
            "update",
            say(
                "learning rate of step {step}: {one:.6g} and {other:.6g}",
                step=other_rate.step,
                one=other_rate.reference,
                other=other_rate.candidate,
            ),
            remedy=say("compare optim.learning_rate, scheduler, warm-up and the number of steps"),
        )
    if adam is not None and not adam.is_same:
        return other_update(adam)
    # The first update shows in the loss of the step after it, with warm-up one later.
    early = pair.steps[(pair.steps > 1) & (pair.steps <= 3) & pair.is_single]
    if exceeding is not None and exceeding in early:
        return failure(
            "update",
            say("the losses diverge at step {step}, right after the first updates", step=exceeding),
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


def ranks(reference: TrainingRecord, candidate: TrainingRecord, exceeding: int | None) -> Finding:
    """8: whether the number of ranks has an effect, and whether all ranks started with the same weights."""
    for side in (candidate, reference):
        of_rank = side.start_weights.get("ranks")
        if isinstance(of_rank, list) and len(set(map(str, of_rank))) > 1:
            return failure(
                "ranks",
                say("the ranks of {name} began with different weights", name=side.name),
                remedy=say("check what loads and broadcasts the weights, and whether every rank reads the same files"),
                evidence=tuple(
                    say("rank {rank}: {value}", rank=rank, value=each) for rank, each in enumerate(of_rank[:_SHOWN])
                ),
            )
    sizes = [side.world_size for side in (reference, candidate)]
    if lacking := [side for side in (reference, candidate) if side.world_size is None]:
        measured = say("{names} recorded no number of ranks", names=names_of_sides(lacking))
        return unknown("ranks", measured, remedy=to_record(lacking))
    if sizes[0] == sizes[1]:
        return ok("ranks", say("both with {count} {count:rank|ranks}", count=sizes[0]))
    both: dict[str, object] = {"one": sizes[0], "other": sizes[1]}
    if exceeding is None:
        return ok("ranks", say("{one} and {other} ranks, and the losses agree", **both))
    return unknown(
        "ranks",
        say("{one} and {other} ranks", **both),
        remedy=say(
            "train the candidate with the same number of ranks: if it then agrees, the reduction differs, not the "
            "computation"
        ),
    )
