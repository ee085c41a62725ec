"""Findings of the stages from two dumps, with the numbers of both sides."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from ascendtune.check.align.dump import TensorStatistics
from ascendtune.check.align.dump_comparison import DumpComparison, FirstDifference
from ascendtune.check.align.input_findings import DATA_REMEDY
from ascendtune.check.align.language import say
from ascendtune.check.align.place_remedy import remedy_of
from ascendtune.check.align.tensor_noise import REDUCED_PRODUCTS
from ascendtune.check.align.tensor_row import TensorRow
from ascendtune.check.finding import Finding, failure, ok, warning

_PHASES = {
    "parameter_before": "parameter before the step",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "gradient": "gradient",
    "parameter_after": "update",
}
_SHOWN_SAMPLES = 4
_MOST_RANKS = 4
"""Number of ranks that are listed one by one."""


def with_dump_evidence(
    findings: tuple[Finding, ...], dumps: DumpComparison, suspected_products: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    """The stages' findings, supplemented by the dumps.

    Args:
        suspected_products: evidence for differences in fp32 that TF32 or HF32 would explain.
    """
    return tuple(_refined(each, dumps, suspected_products) for each in findings)


def _refined(finding: Finding, dumps: DumpComparison, suspected_products: tuple[str, ...]) -> Finding:
    stage = finding.code
    if dumps.place is not None and dumps.place.stage == stage:
        return _differing(finding, dumps.place, dumps, suspected_products)
    if dumps.without_effect is not None and dumps.without_effect.stage == stage:
        if finding.status != "failure":
            return _harmless(dumps.without_effect)
        if stage == "start":
            # Hashes show that weights differ, but not by how much.
            return replace(_harmless(dumps.without_effect), evidence=(finding.measured, *finding.evidence))
    if stage == "data" and dumps.other_rows is not None and finding.status != "failure":
        step, batch = dumps.other_rows
        counts = {"common": batch.common, "rows": batch.rows}
        rows = say("{common:,} of {rows:,} {rows:row|rows} of the batch {common:is|are} in both", **counts)
        # A warning, because packed rows may contain the same sequences in another composition.
        return warning(stage, say("step {step}: {what}", step=step, what=rows), remedy=say(DATA_REMEDY))
    moved = dumps.obstacle if dumps.obstacle and dumps.obstacle.code in ("order", "padding") else None
    if stage == "data" and moved and (finding.status != "failure" or moved.code == "order"):
        # Hashes of batches depend on the order of the rows, too.
        evidence = finding.evidence if finding.status == "failure" else ()
        return warning(stage, str(moved), remedy=_remedy_of_rows(moved.code), evidence=evidence)
    if stage == "later" and dumps.consequence is not None:
        return _with_consequence(finding, dumps.consequence)
    if stage == "ranks" and dumps.replicas and finding.status != "failure":
        return replace(
            finding, evidence=(*finding.evidence, say("replicas of parameters and gradients agree between ranks"))
        )
    if stage in dumps.agreeing and finding.status in ("ok", "unknown"):
        return _agreeing(finding, dumps)
    if stage == "forward" and dumps.obstacle:
        return replace(
            finding, evidence=(*finding.evidence, say("modules were not compared: {why}", why=dumps.obstacle))
        )
    return finding


def _differing(
    finding: Finding, place: FirstDifference, dumps: DumpComparison, suspected_products: tuple[str, ...]
) -> Finding:
    """The finding of the stage at which the tensors differ first."""
    from_dumps = _of_place(place, suspected_products)
    if place.stage == "forward" and len(place.ranks) < len(dumps.ranks):
        alone = say("the other ranks agree: only weights or random numbers of {ranks} differ", ranks=_ranks(place))
        from_dumps = replace(from_dumps, evidence=(alone, *from_dumps.evidence))
    is_gradient = place.stage == "backward" and place.row.key.phase == "gradient"
    if is_gradient and dumps.obstacle and dumps.obstacle.code in ("ranks", "batches"):
        remedy = say(
            "{remedy}; with as many ranks and micro-batches on both sides, modules are compared, too",
            remedy=from_dumps.remedy,
        )
        from_dumps = replace(from_dumps, remedy=remedy)
    before = (finding.measured,) if finding.status != "unknown" else ()
    harmless = _without_gradient(dumps.without_effect) if place.row.key.phase == "loss" else ()
    return replace(from_dumps, evidence=(*harmless, *from_dumps.evidence, *before))


def _agreeing(finding: Finding, dumps: DumpComparison) -> Finding:
    """The finding of a stage whose dumped tensors agree."""
    is_one = len(dumps.steps) == 1
    measured = say(
        "dumped tensors of step {first} agree"
        if is_one
        else "dumped tensors of {count} steps ({first} to {last}) agree",
        count=len(dumps.steps),
        first=dumps.steps[0],
        last=dumps.steps[-1],
    )
    if finding.status == "ok":
        measured = say("{measured}; {further}", measured=finding.measured, further=measured)
    return ok(finding.code, measured, evidence=finding.evidence)


def _remedy_of_rows(code: str) -> str:
    """The remedy for two batches with the same rows at different positions."""
    if code == "padding":
        return say(
            "the side of the padding does not change what is trained if each row's position ids begin at its first "
            "token; to compare modules, set the same padding_side on both sides"
        )
    return say(
        "the order of rows within a batch does not change what is trained; to compare modules, use the same "
        "sampler, seed and sorting by length on both sides"
    )


def difference_text(place: FirstDifference) -> str:
    """The place as text: `step 3, forward, model.layers.0.self_attn, rank 1`."""
    if place.has_other_rows and place.row.key.phase != "forward":
        return say(", ").join((say("step {step}", step=place.step), say("token ids")))
    phase = "token ids" if place.has_other_rows else _PHASES[place.row.key.phase]
    words = (say("step {step}", step=place.step), say(phase), place.module, _ranks(place))
    return say(", ").join(word for word in words if word)


def difference_as_json(place: FirstDifference) -> dict[str, Any]:
    """Fields of the place for `align.json`."""
    row = place.row
    return {
        "step": place.step,
        "stage": place.stage,
        "phase": row.key.phase,
        "module": place.module,
        "tensor": row.key.name,
        "slot": row.key.slot,
        "micro_batch": row.key.micro_batch,
        "ranks": list(place.ranks),
        "difference": row.difference if math.isfinite(row.difference) else None,
        "limit": row.limit,
        "ratio": place.ratio,
        "batch": asdict(place.batch) if place.batch is not None else None,
        "agreeing": place.agreeing or None,
        "reference": tensor_as_json(row.reference),
        "candidate": tensor_as_json(row.candidate),
    }


def tensor_as_json(tensor: TensorStatistics) -> dict[str, Any]:
    """Statistics of a tensor of any shape, with null for NaN."""
    fields = tensor._asdict()
    without_nan = {
        name: None if isinstance(value, float) and math.isnan(value) else value for name, value in fields.items()
    }
    return {**without_nan, "samples": [None if math.isnan(each) else each for each in tensor.samples]}


def _of_place(place: FirstDifference, suspected_products: tuple[str, ...]) -> Finding:
    row = place.row
    is_finite = math.isfinite(row.difference)
    size = say("{difference:.2g} apart", difference=row.difference) if is_finite else _not_finite(row)
    if row.is_of_one_side:
        size = say("only one side has a gradient of it")
    # Gradients of other rows say nothing.
    notes = [] if place.has_other_rows and row.key.phase != "forward" else list(_sides(row))
    if place.batch is not None:
        counts = {"common": place.batch.common, "rows": place.batch.rows}
        common = say("{common:,} of {rows:,} {rows:row|rows} of the batch {common:is|are} in both", **counts)
        if place.has_other_rows:
            size = common
        else:
            notes.insert(0, common)
    if place.weight_difference and not place.has_other_rows:
        notes.insert(
            0,
            say(
                "weights before the step differ by up to {weights:.2g}, and not all steps before it were dumped",
                weights=place.weight_difference,
            ),
        )
    if place.stage in ("forward", "backward") and row.difference <= REDUCED_PRODUCTS * row.limit and _is_fp32(row):
        notes[:0] = suspected_products
    if place.agreeing:
        notes.insert(0, say("agrees until {name}", name=place.agreeing))
    if place.ratio is not None:
        notes.insert(
            0, say("every tensor of this phase that differs is {ratio:.4g} times the reference's", ratio=place.ratio)
        )
    return failure(
        place.stage,
        say("{place}: {size}", place=difference_text(place), size=size),
        expected=say("equal")
        if place.has_other_rows or not row.limit
        else say("at most {limit:.2g} from rounding", limit=row.limit),
        remedy=remedy_of(place),
        evidence=notes,
    )


def _is_fp32(row: TensorRow) -> bool:
    """Whether nothing before the tensor, of any shape, was rounded to 16 bits."""
    return {row.reference.dtype, row.candidate.dtype} == {"float32"} and row.limit < 1 / REDUCED_PRODUCTS


def _with_consequence(finding: Finding, place: FirstDifference) -> Finding:
    """The finding on the curve, with the place at which tensors differ after the losses do."""
    return replace(
        finding,
        remedy=say(
            "dump the steps before step {step} on both sides, too, up to where the losses diverge", step=place.step
        ),
        evidence=(
            say(
                "dumped tensors diverge at {place}, {difference:.2g} apart; weights before that step differ by up to "
                "{weights:.2g} already, which may be the cause",
                place=difference_text(place),
                difference=place.row.difference,
                weights=place.weight_difference,
            ),
            *finding.evidence,
        ),
    )


def _without_gradient(row: TensorRow | None) -> tuple[str, ...]:
    """A sentence on a module that differs at samples without gradient, beside a loss that differs."""
    if row is None or row.key.phase != "forward":
        return ()
    return (
        say(
            "{name} differs too, at sampled positions that no gradient reaches, such as padding; if it also differs "
            "between the samples, it is the cause",
            name=row.key.name,
        ),
    )


def _harmless(row: TensorRow) -> Finding:
    name = f"{row.key.name} ({row.key.slot})" if row.key.slot else row.key.name
    if row.key.phase == "parameter_before":
        return warning(
            row.stage,
            say(
                "{name} differs before step {step} by {difference:.2g}, but losses and gradients agree within rounding",
                name=row.key.name,
                step=row.step,
                difference=row.difference,
            ),
            remedy=say("compare the dtypes of the weights: DeepSpeed rounds them to bf16 at the start"),
            evidence=_sides(row),
        )
    return warning(
        row.stage,
        say(
            "{name} differs in step {step} by {difference:.2g}, but losses and gradients of outputs agree: only "
            "positions that are not trained on differ, such as padding",
            name=name,
            step=row.step,
            difference=row.difference,
        ),
        remedy=say("no action, unless these positions should be trained on"),
        evidence=_sides(row),
    )


def _not_finite(row: TensorRow) -> str:
    one, other = row.reference, row.candidate
    return say(
        "{nan:,} NaN and {inf:,} infinite elements against {other_nan:,} NaN and {other_inf:,} infinite elements",
        nan=one.nan,
        inf=one.inf,
        other_nan=other.nan,
        other_inf=other.inf,
    )


def _ranks(place: FirstDifference) -> str:
    if len(place.ranks) > _MOST_RANKS:
        return say("{count} ranks", count=len(place.ranks))
    is_one = len(place.ranks) == 1
    return say("rank {ranks}" if is_one else "ranks {ranks}", ranks=", ".join(map(str, place.ranks)))


def _sides(row: TensorRow) -> tuple[str, str]:
    """The numbers of the reference and of the candidate."""
    return (
        say("reference: {numbers}", numbers=_numbers(row.reference)),
        say("candidate: {numbers}", numbers=_numbers(row.candidate)),
    )


def _numbers(tensor: TensorStatistics) -> str:
    return say(
        "{dtype} {shape}, L2 {l2:.9g}, mean {mean:.6g}, from {lowest:.6g} to {highest:.6g}, samples {samples}",
        dtype=tensor.dtype,
        shape="×".join(map(str, tensor.shape)) or say("scalar"),
        l2=tensor.l2,
        mean=tensor.mean,
        lowest=tensor.lowest,
        highest=tensor.highest,
        samples=", ".join(f"{each:.6g}" for each in tensor.samples[:_SHOWN_SAMPLES]),
    )
