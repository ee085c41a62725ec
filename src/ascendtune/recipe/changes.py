"""Checks which recipe keys may change when a run is resumed, and raises errors for the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascendtune.core.errors import InputError, RecipeError
from ascendtune.core.files import expanded
from ascendtune.core.rundir import RunDir
from ascendtune.core.suggest import did_you_mean
from ascendtune.recipe.recipe import Recipe

# Keys that decide which weights and optimizer states exist, and how an adapter's weights are applied: a checkpoint
# cannot be loaded with other values, or would become another model.
_FIXED = (
    "model.init",
    "model.quantization",
    "model.double_quantization",
    "model.new_tokens",
    "model.new_layers",
    "method.stage",
    "method.tuner",
    "method.preference.loss",
    "method.preference.reference",
    "method.lora.target",
    "method.lora.rank",
    "method.lora.alpha",
    "method.lora.rslora",
    "method.lora.dora",
    "method.lora.modules_to_save",
    "method.lora.init",
    "method.lora.start_from",
    "method.oft.target",
    "method.oft.block_size",
    "method.oft.rank",
    "method.oft.block_share",
    "method.oft.cayley_neumann",
    "method.oft.modules_to_save",
    "method.oft.start_from",
    "method.freeze.first_layers",
    "method.freeze.last_layers",
    "method.freeze.spread_layers",
    "method.freeze.modules",
    "method.freeze.extra",
    "optim.optimizer",
)
# Keys that may always differ: they change where files go and how fast training is, not its result.
_FREE_TO_CHANGE = (
    "name",
    "run_dir",
    "checkpoint.",
    "track.",
    "data.processes",
    "memory.",
    "parallel.",
    "batch.",
    "on_hang",
    "align.",
    "profile.",
)
_START_OVER = "start over: checkpoint.resume=never"


@dataclass(frozen=True)
class ResumeOptions:
    """Deviations from the run, or from the checkpoint, that a resuming start accepts."""

    allow_change: Sequence[str] = ()
    """Dotted keys, or `data`, that may differ from the run."""
    trust_checkpoint: bool = False
    """Load a checkpoint that another user has written, or may write."""
    in_python: bool = False
    """Whether they are arguments of `fit`, not options of `ascendtune train`."""

    def changing(self, *keys: str) -> str:
        """The option or argument that also accepts changes of `keys`."""
        if self.in_python:
            return f"allow_change={[*self.allow_change, *keys]}"
        return " ".join(f"--allow-change {key}" for key in keys)

    @property
    def trusting(self) -> str:
        """The option or argument to trust the checkpoint."""
        return "trust_checkpoint=True" if self.in_python else "--trust-checkpoint"


def require_known(resume_options: ResumeOptions, recipe: Recipe) -> None:
    """Raise if `allow_change` contains an unknown key."""
    leaves = [key.split(".") for key in leaves_of(recipe.model_dump(mode="json"))]
    known = {".".join(parts[:length]) for parts in leaves for length in range(1, len(parts) + 1)}
    for key in resume_options.allow_change:
        if key not in known:
            raise RecipeError(
                f"{replace(resume_options, allow_change=()).changing(key)}: no such recipe key",
                code="unknown-recipe-key",
                remedy=did_you_mean(key, known, "`ascendtune recipe schema` lists the keys"),
            )


def require_same_recipe(run: RunDir, recipe: Recipe, resume_options: ResumeOptions) -> None:
    """Raise if `recipe` differs from the run's recipe in a key that changes the training."""
    before, after = (
        leaves_of(each.model_dump(mode="json")) | _alpha(each) for each in (Recipe.load(run.recipe), recipe)
    )
    if run.read().get("model_directory") == str(expanded(recipe.model.path).resolve()):
        # The same directory, written differently or relative to another directory.
        after["model.path"] = before["model.path"]
    if fixed := [key for key in _FIXED if before.get(key) != after.get(key)]:
        raise RecipeError(
            f"{fixed[0]} cannot change within a run ({_shown(before.get(fixed[0]))} -> {_shown(after.get(fixed[0]))}): "
            "its checkpoints contain other weights",
            code="recipe-changed",
            remedy=f"undo the change; or {_START_OVER}",
            where=run.recipe,
        )
    changed = [
        key
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not _may_change(key, resume_options.allow_change)
    ]
    if changed:
        differences = [line for key in changed for line in _differences(key, before.get(key), after.get(key))]
        raise RecipeError(
            "this run was trained with another recipe: " + "; ".join(differences),
            code="recipe-changed",
            remedy=f"undo the change; or accept it: {resume_options.changing(*changed)}; or {_START_OVER}",
            where=run.recipe,
        )


def require_same_adapter(owner: RunDir, other: Recipe, recipe: Recipe, checkpoint: Path) -> None:
    """Raise if the adapter's tensors in `checkpoint` would change the model differently with `recipe`.

    Args:
        owner: the run that wrote the checkpoint, not the run to be resumed.
        other: its recipe.
    """
    before, after = _meaning_of_adapter(other), _meaning_of_adapter(recipe)
    if changed := [key for key in before if before[key] != after.get(key, before[key])]:
        listed = "; ".join(f"{key}: {_shown(before[key])} -> {_shown(after[key])}" for key in changed)
        raise RecipeError(
            f"checkpoint.resume: the checkpoint is of a run whose adapter changes the model in another way: {listed}",
            code="recipe-changed",
            remedy=f"undo the change; or train its weights from step 1 on: "
            f"method.{other.method.tuner}.start_from=[{owner}], without checkpoint.resume",
            where=checkpoint,
        )


def _meaning_of_adapter(recipe: Recipe) -> dict[str, Any]:
    """Keys and values that decide how the tensors of an adapter are applied; empty if the adapter's files decide it."""
    method = recipe.method
    if method.adapter is None or method.start_from:
        return {}
    if method.tuner == "oft":
        return {"method.oft.cayley_neumann": method.oft.cayley_neumann}
    lora = method.lora
    return {**_alpha(recipe), "method.lora.rslora": lora.rslora, "method.lora.init": lora.init}


def _alpha(recipe: Recipe) -> dict[str, Any]:
    """The default of alpha depends on the rank."""
    return {"method.lora.alpha": recipe.method.lora.alpha_or_default}


def require_same_data(run: RunDir, record: dict[str, Any], fingerprint: str, resume_options: ResumeOptions) -> None:
    """Raise if the tokens differ from those that the run was trained on.

    Args:
        record: run.json.
    """
    before = record.get("data_hash")
    # A permitted change of a key of the data section permits other tokens.
    if before != fingerprint and not any(each.partition(".")[0] == "data" for each in resume_options.allow_change):
        raise InputError(
            f"the data is not what this run was trained on ({before} -> {fingerprint}): its files, template or "
            "tokenizer have changed",
            code="data-changed",
            remedy=f"restore the data; or accept it: {resume_options.changing('data')}; or {_START_OVER}",
            where=run.path,
        )


def _differences(key: str, before: Any, after: Any) -> list[str]:
    """`data.train[0].path: a.jsonl -> b.jsonl`: of sections in lists only the keys that differ."""
    if _are_sections(before) and _are_sections(after) and len(before) == len(after):
        return [
            f"{key}[{number}].{name}: {_shown(old.get(name))} -> {_shown(new.get(name))}"
            for number, (old, new) in enumerate(zip(before, after, strict=True))
            for name in {**old, **new}
            if old.get(name) != new.get(name)
        ]
    return [f"{key}: {_shown(before)} -> {_shown(after)}"]


def _are_sections(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _shown(value: Any) -> str:
    """`value` as it is written in a recipe; data sets as their paths."""
    if _are_sections(value):
        value = [each.get("path") for each in value]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _may_change(key: str, allowed: Sequence[str]) -> bool:
    return key.startswith(_FREE_TO_CHANGE) or any(key == each or key.startswith(each + ".") for each in allowed)


def leaves_of(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key: `{"optim.learning_rate": …}`; a list is one value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= leaves_of(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def kind_of_loss(leaves: Mapping[str, Any]) -> str:
    """The kind of the recorded loss: losses of different kinds cannot be compared.

    Args:
        leaves: values of a recipe, by dotted key.
    """
    stage = leaves.get("method.stage", "sft")
    return f"{stage}, {leaves.get('method.preference.loss', 'sigmoid')}" if stage == "preference" else str(stage)
