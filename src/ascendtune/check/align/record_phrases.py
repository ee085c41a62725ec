"""Sentences about records of losses: their kind, and the steps that they cover."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align.language import say
from ascendtune.check.align.paired_losses import PairedLosses
from ascendtune.check.align.training_record import REDUCED, TrainingRecord

_STEPS_TO_EFFECT = 3
"""Steps in which an optimizer state that was not restored shows in the losses: its first update in the second."""
_READINGS = {
    "steps": "a record of {name} is read as the mean over its steps",
    "tokens": "a record of {name} is read as the mean over the labelled tokens, pairs or answers of its steps",
    "single": "a record of {name} is read as the loss of one step",
}


def kinds_of_records(pair: PairedLosses, reference: TrainingRecord, candidate: TrainingRecord) -> tuple[str, ...]:
    """For each side whose records cover several steps, a sentence on how they are interpreted."""
    sentences = tuple(
        say(_READINGS[reading], name=side.name)
        for side, reading in zip((reference, candidate), pair.readings, strict=True)
        if reading is not None
    )
    is_assumed = len(sentences) > 1 and all(len(side.curve.readings) > 1 for side in (reference, candidate))
    assumed = say("neither log specifies this: if one has means and the other has losses of single steps, they differ")
    return (*sentences, assumed) if is_assumed else sentences


def names_of_sides(sides: Sequence[TrainingRecord]) -> str:
    """The names of the sides, with the kind of their records."""
    return say(" and ").join(f"{side.name} ({side.kind})" for side in sides)


def steps_of_record(pair: PairedLosses, step: int) -> str:
    """The steps of the record that ends at `step`."""
    begin = int(pair.begins[pair.steps == step][0])
    if step - begin == 1:
        return say("step {step}", step=step)
    return say("steps {least} to {most}", least=begin + 1, most=step)


def records_alone(side: TrainingRecord, steps: NDArray[np.int64]) -> str:
    """A sentence on the records of `side` that were not compared, by their steps, (records,)."""
    return say(
        "records of {name} without a counterpart: {count:,} (step {which})",
        name=side.name,
        count=len(steps),
        which=_which(steps),
    )


def records_without_numbers(steps: NDArray[np.int64]) -> str:
    """A sentence on the records whose loss is not a number on either side, by their steps, (records,)."""
    return say(
        "losses that are NaN or infinite on both sides: {count:,} (step {which})", count=len(steps), which=_which(steps)
    )


def _which(steps: NDArray[np.int64]) -> object:
    return say("{least} to {most}", least=steps[0], most=steps[-1]) if len(steps) > 1 else steps[0]


def reduced_products(reference: TrainingRecord, candidate: TrainingRecord) -> tuple[str, ...]:
    """Sentences on the sides that compute fp32 products in TF32 or HF32."""
    found = []
    for side, other in ((reference, candidate), (candidate, reference)):
        products = side.fp32_products
        if products in REDUCED and side.precision in ("fp32", None):
            both = {"name": side.name, "type": products.upper(), "other": other.name}
            found.append(
                say("{name} computes fp32 products in {type}, {other} does not", **both)
                if other.fp32_products == "fp32"
                else say("{name} computes fp32 products in {type}", **both)
            )
    return tuple(found)


def resumed_before(step: int | None, *sides: TrainingRecord) -> tuple[str, ...]:
    """Sentences on the sides that were resumed just before `step`, at which trainings diverge."""
    return tuple(
        say("{name} was resumed from a checkpoint, and goes on with step {step}", name=side.name, step=resumed)
        for side in sides
        for resumed in side.resumed_at
        if step is not None and 0 <= step - resumed < _STEPS_TO_EFFECT
    )


def suspected_products(reference: TrainingRecord, candidate: TrainingRecord) -> tuple[str, ...]:
    """A sentence on differences in fp32 no larger than those of TF32 and HF32, unless both sides recorded the type."""
    if None not in (reference.fp32_products, candidate.fp32_products):
        return ()
    return (
        say(
            "products whose inputs are rounded to 11 bits (TF32 of GPUs, HF32 of NPUs) cause differences of this size: "
            "compare torch.backends.cuda.matmul.allow_tf32 and torch_npu.npu.matmul.allow_hf32"
        ),
    )


def restored_remedy() -> str:
    """The remedy if trainings diverge after one was resumed."""
    return say(
        "compare what was restored from the checkpoint: weights, the optimizer's state, the step of the learning rate "
        "schedule, random numbers, and the position in the data"
    )


def without_reduced_products() -> str:
    """Settings with which fp32 products are computed in fp32."""
    return say(
        "compute fp32 products in fp32: torch.backends.cuda.matmul.allow_tf32 = False, "
        "torch_npu.npu.matmul.allow_hf32 = False, and no TORCH_ALLOW_TF32_CUBLAS_OVERRIDE in the environment"
    )


def to_record(sides: Sequence[TrainingRecord]) -> str | None:
    """The remedy if one of `sides` is a log, which contains only losses; None if none is."""
    if not any(side.is_foreign and not side.run for side in sides):
        return None
    return say("record the other trainer: ascendtune align record -- COMMAND")


def sides_without_loss(*sides: TrainingRecord) -> list[TrainingRecord]:
    """Those of `sides` that have recorded no loss."""
    return [side for side in sides if not len(side.curve.steps)]
