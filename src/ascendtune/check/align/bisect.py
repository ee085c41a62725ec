"""The ingredient of a recipe that makes two trainings diverge: what is swapped, in which order, and the conclusion.

A trial trains the candidate again up to the step at which it diverged, with some ingredients of the reference. An
ingredient whose swap alone makes the trial agree with the reference is the cause. This module does no training itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

from ascendtune.check.align.language import say
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.finding import Finding, failure, ok, unknown
from ascendtune.core.config import MOST
from ascendtune.core.foreign_json import object_of, value_at
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.changes import leaves_of
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import ModelSection

INGREDIENTS: dict[str, tuple[str, ...]] = {
    "attention": ("model.attention",),
    "kernels": ("kernel",),
    "dtype": ("precision", "model.dtype"),
    "optimizer": ("optim",),
    "accumulate": ("batch",),
}
"""Ingredient -> recipe keys or whole sections that are swapped together."""
_ATTENTIONS = get_args(ModelSection.model_fields["attention"].annotation)


@dataclass(frozen=True)
class TrainedRecipe:
    """A recipe, and what was resolved for the device.

    Attributes:
        values: nested, with all defaults; `auto` is replaced by the resolved value if a recipe can contain that.
        values_with_auto: the same with `auto`, as in recipe.yaml.
        kernels: part of the model -> description of the operator that computed it.
        ranks: number of processes; None if run.json does not contain it.
    """

    values: dict[str, Any]
    values_with_auto: dict[str, Any]
    kernels: Mapping[str, Any]
    ranks: int | None

    @classmethod
    def of(cls, side: TrainingRecord) -> TrainedRecipe:
        """The recipe of a run of ascendtune.

        Raises:
            RecipeError: recipe.yaml cannot be read.
        """
        values_with_auto = Recipe.load(RunDir(side.path).recipe).model_dump(mode="json")
        # A run directory may come from an untrusted source.
        values, resolved = deepcopy(values_with_auto), object_of(side.run.get("resolved"))
        attention = value_at(resolved, "attention", "name")
        if values["model"]["attention"] == "auto" and attention in _ATTENTIONS:
            values["model"]["attention"] = attention
        if values["precision"] == "auto" and side.precision in ("bf16", "fp16", "fp32"):
            values["precision"] = side.precision
        if (is_padding_free := resolved.get("padding_free")) is not None:
            # A trial has the layout of the run: dropout draws for padding, too.
            values_with_auto["align"]["pad"] = not is_padding_free
        return cls(values, values_with_auto, object_of(resolved.get("kernel")), side.world_size)


@dataclass(frozen=True)
class Swap:
    """One ingredient, swapped.

    Attributes:
        changes: recipe key -> values of the candidate and of the reference, for keys that differ.
        obstacle: reason why it cannot be swapped; empty if it can.
    """

    name: str
    changes: Mapping[str, tuple[Any, Any]]
    obstacle: str = ""

    @property
    def text(self) -> str:
        """The changes as text: `optim.epsilon: 0.1 -> 1e-08`."""
        return ", ".join(f"{key}: {_word(old)} -> {_word(new)}" for key, (old, new) in self.changes.items())

    @property
    def overrides(self) -> str:
        """The changes as overrides for the command line of `ascendtune train`: `optim.epsilon=1e-08`."""
        return " ".join(f"{key}={_word(new)}" for key, (_, new) in self.changes.items())


def swaps_between(reference: TrainedRecipe, candidate: TrainedRecipe, names: Collection[str]) -> list[Swap]:
    """The named ingredients in the order of the table, including those that cannot be swapped."""
    return [_swap(name, keys, reference, candidate) for name, keys in INGREDIENTS.items() if name in names]


def _swap(name: str, keys: Sequence[str], reference: TrainedRecipe, candidate: TrainedRecipe) -> Swap:
    before, after = (leaves_of({key: _value(each.values, key) for key in keys}) for each in (candidate, reference))
    different = {
        key: (before.get(key), after.get(key))
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    }
    obstacle = ""
    if name == "accumulate" and different and reference.ranks != candidate.ranks:
        obstacle = say(
            "{one} and {other} ranks: the swap would change the global batch",
            one=reference.ranks,
            other=candidate.ranks,
        )
    elif name == "kernels" and not different and reference.kernels != candidate.kernels:
        obstacle = say("the recipes are the same, but the devices have other fused operators; compare with kernel: off")
    elif not different:
        obstacle = say("the same on both sides")
    return Swap(name, different, obstacle)


def trial_recipe(
    reference: TrainedRecipe,
    candidate: TrainedRecipe,
    swapped: Sequence[str],
    *,
    last_step: int,
    dump_steps: Sequence[int],
    run_dir: Path,
) -> Recipe:
    """The candidate's recipe with the named ingredients of the reference, to be trained from step 1 to `last_step`.

    Args:
        dump_steps: steps whose tensors are compared; empty to compare records only.

    Raises:
        RecipeError: the combination of these ingredients is invalid.
    """
    values = deepcopy(candidate.values_with_auto)
    for name in swapped:
        for key in INGREDIENTS[name]:
            _set(values, key, deepcopy(_value(reference.values, key)))
    values["run_dir"] = str(run_dir)
    # The comparison needs no checkpoints and no evaluations.
    values["checkpoint"] |= {"resume": "never", "every_steps": MOST, "best": False}
    values["eval"] = {"early_stop": None, "every_steps": MOST if _has_evaluation(values["data"]) else None}
    values["track"] |= {"tensorboard": False, "send_to": [], "host": None}
    values["align"] |= {
        "batch_hash": True,
        "dump_steps": ",".join(map(str, dump_steps)) or None,
        "level": reference.values["align"]["level"],
        "ranks": None,
        "content": "statistics",
        "stop_after": last_step,
    }
    if values["on_nan"] == "dump":
        values["on_nan"] = "stop"
    return Recipe.check(values, f"the recipe with {' and '.join(swapped) or 'nothing'} swapped")


def _has_evaluation(data: Mapping[str, Any]) -> bool:
    return any(data.get(key) for key in ("eval", "eval_fraction", "eval_rows"))


@dataclass(frozen=True)
class SwapTrial:
    """A repetition of the candidate with ingredients of the reference.

    Attributes:
        swapped: the ingredients taken from the reference.
        agrees: whether it agrees with the reference up to the step; None if it could not be trained that far.
        outcome: the verdict of the comparison, or the reason why there is none.
    """

    swapped: tuple[str, ...]
    agrees: bool | None
    outcome: str


def find_culprits(names: Sequence[str], agrees: Callable[[tuple[str, ...]], bool | None]) -> list[tuple[str, ...]]:
    """The smallest sets of ingredients whose swap makes the candidate agree; empty if there is none.

    Each ingredient is tried alone first. If none agrees, all together; if these agree, pairs up to the first that
    agrees.

    Args:
        agrees: trains with a set swapped; None if this is not possible, and the ingredient is then omitted.
    """
    outcomes = {name: agrees((name,)) for name in names}
    usable = tuple(name for name in names if outcomes[name] is not None)
    guilty: list[tuple[str, ...]] = [(name,) for name in usable if outcomes[name]]
    if guilty:
        return guilty
    if len(usable) < 2 or not agrees(usable):
        return []
    if len(usable) > 2:
        pair = next((pair for pair in combinations(usable, 2) if agrees(pair)), None)
        if pair is not None:
            return [pair]
    return [usable]


def most_trials(count: int) -> int:
    """The largest number of trials that `find_culprits` can need for `count` ingredients."""
    return count + (count > 1) + (count * (count - 1) // 2 if count > 2 else 0)


def verdict(guilty: Sequence[tuple[str, ...]], step: int) -> str:
    """The conclusion in one sentence."""
    names = [say(" and ").join(each) for each in guilty]
    if not names:
        return say("no ingredient explains why the runs diverge at step {step}", step=step)
    if len(guilty) > 1:
        both = say(" or ").join(names)
        return say("{names}: each alone explains why the runs diverge at step {step}", names=both, step=step)
    if len(guilty[0]) == 1:
        return say("{names} explains why the runs diverge at step {step}", names=names[0], step=step)
    return say(
        "{names}, only together, explain why the runs diverge at step {step}"
        if len(guilty[0]) == 2
        else "{names}, only all together, explain why the runs diverge at step {step}",
        names=names[0],
        step=step,
    )


def findings_of(
    trials: Sequence[SwapTrial], swaps: Sequence[Swap], guilty: Collection[tuple[str, ...]]
) -> list[Finding]:
    """One finding for each trial, and one for each ingredient that was not swapped."""
    by_name = {each.name: each for each in swaps}
    findings = []
    for trial in trials:
        code = "+".join(trial.swapped)
        swapped = [by_name[name] for name in trial.swapped]
        evidence = [each.text for each in swapped]
        if trial.agrees is None:
            findings.append(unknown(code, trial.outcome, evidence=evidence))
        elif trial.swapped in guilty:
            keys = " ".join(each.overrides for each in swapped)
            remedy = say("train the candidate with {keys}", keys=keys)
            agreed = say("swapped, the runs agree: {verdict}", verdict=trial.outcome)
            findings.append(failure(code, agreed, remedy=remedy, evidence=evidence))
        else:
            outcome = say(
                "swapped, the runs agree: {verdict}" if trial.agrees else "swapped, the runs still diverge: {verdict}",
                verdict=trial.outcome,
            )
            findings.append(ok(code, outcome, evidence=evidence))
    left_out = (each for each in swaps if each.obstacle)
    return [*findings, *(unknown(each.name, say("not swapped: {why}", why=each.obstacle)) for each in left_out)]


def _word(value: Any) -> str:
    """`value` as it is written in a recipe."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(values: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        values = values[part]
    values[last] = value
