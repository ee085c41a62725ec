"""Findings on what went into two trainings: the rows of their batches, and the weights that they started from."""

from __future__ import annotations

from collections.abc import Mapping

from ascendtune.check.align.language import say
from ascendtune.check.align.record_phrases import names_of_sides, to_record
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.finding import Finding, failure, ok, unknown, warning

_SHOWN = 5
_FEWEST_MOVED = 2
"""Number of moved batches that are not a coincidence of data with equal rows."""
DATA_REMEDY = (
    "compare the data: files, order, seed, template, max_length, packing, and where a resumed training goes on"
)


def data(reference: TrainingRecord, candidate: TrainingRecord) -> Finding:
    """2: whether both trained on the same rows, step by step."""
    one, other = (_batches(side) for side in (reference, candidate))
    if common := _comparable(one, other):
        first = first_other_batch(reference, candidate)
        if first is None:
            return ok("data", say("the batches of {count:,} {count:step|steps} are the same", count=len(common)))
        different = [step for step in common if one[step] != other[step]]
        is_of_tokens = _is_of_tokens(one[first])
        measured = (
            say("the batches of step {step} differ in token ids", step=first)
            if is_of_tokens
            else say("the batches of step {step} differ in rows, tokens or order", step=first)
        )
        if (moved := batches_moved(reference, candidate, first)) is not None:
            measured = say("{measured}; {further}", measured=measured, further=moved)
        return failure(
            "data",
            measured,
            remedy=say(DATA_REMEDY)
            if is_of_tokens
            else say("compare data.json and recipe.yaml of both: seed, order of files, template, max_length, packing"),
            evidence=tuple(
                say("step {step}: {one} and {other}", step=step, one=one[step], other=other[step])
                for step in different[:_SHOWN]
            ),
        )
    hashes = [side.run.get("data_hash") for side in (reference, candidate)]
    if all(hashes) and hashes[0] == hashes[1]:
        return ok("data", say("the tokens are the same (data_hash); batches were not recorded"))
    if lacking := [side for side in (reference, candidate) if not any(side.curve.batch_hashes)]:
        remedy = to_record(lacking)
        if remedy is None and not all(side.is_foreign for side in lacking):
            remedy = say("train with align.batch_hash: true on both sides")
        return unknown("data", say("{names} recorded no batches", names=names_of_sides(lacking)), remedy=remedy)
    return unknown("data", say("no step has batches recorded on both sides"))


def first_other_batch(reference: TrainingRecord, candidate: TrainingRecord) -> int | None:
    """The first step whose batches have other hashes; None if there is none."""
    one, other = (_batches(side) for side in (reference, candidate))
    return next((step for step in _comparable(one, other) if one[step] != other[step]), None)


def _comparable(one: Mapping[int, str], other: Mapping[int, str]) -> list[int]:
    """Steps with hashes of the same kind on both sides."""
    return [step for step in one if step in other and _is_of_tokens(one[step]) == _is_of_tokens(other[step])]


def _batches(side: TrainingRecord) -> dict[int, str]:
    """Step -> hash of its batch, for the steps that have one."""
    steps = side.curve.steps.tolist()
    return {step: each for step, each in zip(steps, side.curve.batch_hashes, strict=True) if each}


def _is_of_tokens(batch_hash: str) -> bool:
    """Whether the hash is one of `align record`, which only depends on which token ids a batch has."""
    return batch_hash.startswith("tokens-")


def batches_moved(reference: TrainingRecord, candidate: TrainingRecord, first: int) -> str | None:
    """A sentence if the candidate's batches from step `first` on are the reference's of some steps before or after."""
    one, other = (_batches(side) for side in (reference, candidate))
    of_reference = {each: step for step, each in one.items()}
    moved = of_reference.get(other[first], first) - first
    pairs = [(other[step], one[step + moved]) for step in other if step >= first and step + moved in one]
    if not moved or len(pairs) < _FEWEST_MOVED or any(of_candidate != of_other for of_candidate, of_other in pairs):
        return None
    sides = {"step": first, "source": first + moved, "name": candidate.name, "other": reference.name}
    return (
        say("from step {step} on {name} has the batches of {other} from step {source} on: some are left out", **sides)
        if moved > 0
        else say(
            "from step {step} on {name} has the batches of {other} from step {source} on: some come twice", **sides
        )
    )


def start(reference: TrainingRecord, candidate: TrainingRecord) -> Finding:
    """3: whether both started from the same weights."""
    hashes = [_hashes(side) for side in (reference, candidate)]
    if all(hashes):
        common = [name for name in hashes[0] if name in hashes[1]]
        other = [name for name in common if hashes[0][name] != hashes[1][name]]
        if not common:
            return unknown("start", say("the weights of the sides have no name in common"))
        alone = (*_only_in(reference.name, *hashes), *_only_in(candidate.name, *reversed(hashes)))
        if not other:
            measured = say(
                "both started from the same weights: {count:,} {count:parameter|parameters}", count=len(common)
            )
            return ok("start", measured, evidence=alone)
        counts = {"count": len(other), "total": len(common), "first": other[0]}
        shown = (
            say("{key}: {one} and {other}", key=name, one=hashes[0][name], other=hashes[1][name])
            for name in other[:_SHOWN]
        )
        evidence = (*shown, *alone)
        if _differ_in_types(reference, candidate):
            measured = say(
                "{count:,} of {total:,} {total:parameter|parameters} {count:differs|differ} before the first step "
                "({first}), as if rounded to the types of the sides ({one}, {other})",
                one=reference.precision,
                other=candidate.precision,
                **counts,
            )
            remedy = say(
                "train both sides in one precision, or dump step 1 of both: dumped weights show whether the "
                "difference is rounding"
            )
            return warning("start", measured, remedy=remedy, evidence=evidence)
        return failure(
            "start",
            say(
                "{count:,} of {total:,} {total:parameter|parameters} {count:differs|differ} before the first step: "
                "{first}",
                **counts,
            ),
            remedy=say(
                "compare the models' files (sha256), the seed of new weights such as adapters, and what changes "
                "weights at load"
            ),
            evidence=evidence,
        )
    first, second = ((side.run.get("weights_hash"), side.adapters) for side in (reference, candidate))
    if first[0] and first == second:
        return ok("start", say("both started from the same weight files"))
    if first[1] != second[1] and first[0] and second[0]:
        return failure(
            "start",
            say("the adapters that the trainings continued from are different files"),
            remedy=say("give both the same adapters in start_from"),
        )
    if lacking := [side for side in (reference, candidate) if not _hashes(side) and not side.run.get("weights_hash")]:
        measured = say("{names} recorded no weights", names=names_of_sides(lacking))
        return unknown("start", measured, remedy=to_record(lacking))
    return unknown("start", say("the weight files differ in names, sizes or times, and their content was not recorded"))


def _differ_in_types(*sides: TrainingRecord) -> bool:
    """Whether the sides may have rounded the same weights to different types.

    Trained matrices are in fp32. Frozen weights have the type of the products, and adapters are drawn in it.
    """
    are_all_trained = all((side.recipe or {}).get("method.tuner") == "full" for side in sides)
    return not are_all_trained and None not in (each := [side.precision for side in sides]) and len(set(each)) > 1


def _only_in(name: str, parameters: Mapping[str, str], others: Mapping[str, str]) -> tuple[str, ...]:
    """The parameters, of any shape, that the side `name` alone has, in a sentence; empty if there are none."""
    alone = [each for each in parameters if each not in others]
    listed = ", ".join(alone[:_SHOWN])
    return (say("only in {name} ({count:,}): {first}", name=name, count=len(alone), first=listed),) if alone else ()


def _hashes(side: TrainingRecord) -> dict[str, str]:
    hashes = side.start_weights.get("parameters")
    return {str(name): str(value) for name, value in hashes.items()} if isinstance(hashes, dict) else {}
