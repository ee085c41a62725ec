"""Stage 1 of a comparison: whether both recipes request the same training, with the same random numbers."""

from __future__ import annotations

from typing import Any

from ascendtune.check.align.adam_updates import adam_settings, other_settings
from ascendtune.check.align.depth import sections_of_config
from ascendtune.check.align.language import say
from ascendtune.check.align.record_phrases import names_of_sides
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.core.foreign_json import is_number

# Keys of paths, of reporting and of how results are computed, not of what is trained.
_FREE = (
    *("name", "run_dir", "track.", "checkpoint.", "eval.", "memory.", "parallel.", "kernel", "align.", "on_nan"),
    *("on_hang", "deterministic", "batch.", "precision", "model.attention", "model.path", "data.processes"),
)
# The stage `data` compares these by hashes, since the same files may have other paths.
_DATA = ("data.train", "data.eval")
_SHOWN = 5
_NAMED = 3
"""Number of these in the sentence; the others are evidence."""
_DRAWN = {
    "method.lora.dropout": ("method.tuner", "lora"),
    "method.oft.module_dropout": ("method.tuner", "oft"),
    "method.sft.neftune_alpha": ("method.stage", "sft"),
}
"""Keys with which random numbers are drawn in every step, and the key and value that they require to have effect."""
_UNUSED_DROPOUTS = ("classifier", "summary")
"""Keys of config.json for heads that no stage trains."""


def question(reference: TrainingRecord, candidate: TrainingRecord) -> Finding:
    """1: whether both recipes request the same training."""
    if reference.recipe is None or candidate.recipe is None:
        one, other = (adam_settings(side.recipe, side.run) for side in (reference, candidate))
        if one is not None and other is not None and (settings := other_settings(one, other)):
            listed = [f"{name}: {one_value:g}, {other_value:g}" for name, (one_value, other_value) in settings.items()]
            return Finding(
                "question",
                "failure",
                say("the optimizers have different settings: {settings}", settings="; ".join(listed)),
                remedy=say("give the candidate's optimizer the reference's settings"),
            )
        lacking = [side for side in (reference, candidate) if side.recipe is None]
        return unknown(
            "question", say("{names} recorded no recipe that can be compared", names=names_of_sides(lacking))
        )
    keys = sorted(reference.recipe.keys() | candidate.recipe.keys())
    different = [
        key
        for key in keys
        if reference.recipe.get(key) != candidate.recipe.get(key) and not key.startswith((*_FREE, *_DATA))
    ]
    batches = [side.run.get("global_batch") for side in (reference, candidate)]
    lines = [
        say("{key}: {one} and {other}", key=key, one=reference.recipe.get(key), other=candidate.recipe.get(key))
        for key in different
    ]
    if None not in batches and batches[0] != batches[1]:
        batch = say("global batch: {one} and {other} sequences a step", one=batches[0], other=batches[1])
        lines.insert(0, batch)
    if not lines:
        return _same_question(reference, candidate)
    return Finding(
        "question",
        "failure",
        say(
            "the recipes differ in keys that decide the result ({count}): {first}",
            count=len(lines),
            first="; ".join(lines[:_NAMED]),
        ),
        remedy=say("train the candidate with the reference's recipe.yaml"),
        evidence=tuple(lines[_NAMED:_SHOWN]),
    )


def _same_question(reference: TrainingRecord, candidate: TrainingRecord) -> Finding:
    """The finding for equal recipes: random numbers can still make two correct trainings differ."""
    drawn, unlike = _drawn(reference), _unlike_draws(reference, candidate)
    if not drawn or not unlike:
        return ok("question", say("the recipes request the same training"))
    return Finding(
        "question",
        "failure",
        say(
            "both draw random numbers in every step ({keys}), but not the same ones: {why}",
            keys=drawn[0],
            why=unlike[0],
        ),
        remedy=say("train both sides without them: set {keys} to 0", keys=", ".join(drawn)),
        evidence=(*drawn[1:], *unlike[1:]),
    )


def _drawn(side: TrainingRecord) -> list[str]:
    """Keys of the recipe, and of the model's config.json if it is available, with which random numbers are drawn."""
    recipe = side.recipe or {}
    keys = [
        key
        for key, (condition, value) in _DRAWN.items()
        if recipe.get(condition) == value and _is_positive(recipe.get(key))
    ]
    for section in sections_of_config(side.run.get("model_directory")):
        keys += [
            f"{key} (config.json)"
            for key, value in section.items()
            if ("dropout" in key or "pdrop" in key) and not key.startswith(_UNUSED_DROPOUTS) and _is_positive(value)
        ]
    return list(dict.fromkeys(keys))


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _unlike_draws(reference: TrainingRecord, candidate: TrainingRecord) -> list[str]:
    """Reasons why the random generators of the sides give different numbers; empty if none is known."""
    resolved = [found if isinstance(found := side.run.get("resolved"), dict) else {} for side in (reference, candidate)]
    devices = [found if isinstance(found := each.get("device"), dict) else {} for each in resolved]
    # CPU generators of all hosts draw the same numbers; on accelerators the order of the draws depends on the chip.
    chips = [each.get("kind") if each.get("kind") == "cpu" else each.get("name") for each in devices]
    facts = (
        ("devices: {one} and {other}", chips),
        ("ranks: {one} and {other}", [reference.world_size, candidate.world_size]),
        ("sequences of a micro-batch: {one} and {other}", [each.get("per_device") for each in resolved]),
        ("rows without padding: {one} and {other}", [each.get("padding_free") for each in resolved]),
    )
    return [
        say(sentence, one=one, other=other)
        for sentence, (one, other) in facts
        if one is not None and other is not None and one != other
    ]
