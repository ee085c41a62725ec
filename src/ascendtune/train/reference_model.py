"""Which model is the reference, made ready to be asked: the policy before its first step, or another model.

A fresh adapter changes nothing, so before the first step the policy is its base. Where an adapter is trained further,
the reference is what that adapter made of the base.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.attention.choice import AttentionChoice, choose_attention
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.model import load_model, read_config
from ascendtune.train.objective.base import make_objective
from ascendtune.train.objective.double_float import DoubleFloat
from ascendtune.train.objective.preference import PreferenceObjective
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import Strategy

LogProbs = Callable[[DeviceBatch], DoubleFloat]


def attention_of_reference(recipe: Recipe, directory: str, device: Device) -> AttentionChoice:
    """The attention of another model in `directory`."""
    section, config = _section_of(recipe, Path(directory))
    choice = choose_attention(section, "preference", config, device.attention)
    if not choice.verdict.padded:
        raise RecipeError(
            f"padding changes what the reference model computes: {choice.verdict.why_padded}",
            remedy="choose another method.preference.reference",
            where=directory,
        )
    return choice


def reference_model(
    recipe: Recipe,
    directory: str | None,
    attention: AttentionChoice | None,
    objective: PreferenceObjective,
    strategy: Strategy,
    precision: Precision,
    tokens: int,
) -> Callable[[], AbstractContextManager[LogProbs]]:
    """What makes the reference ready while a context lasts.

    Args:
        directory: of another model, where the recipe names one.
        attention: of that model.
        objective: around the model before its first step.
        tokens: size of the vocabulary that the data use.
    """
    if directory is not None:
        assert attention is not None
        return lambda: _another_model(recipe, Path(directory), attention, strategy, precision, tokens)
    return lambda: _as_it_is(objective)


def reference_key(recipe: Recipe, record: dict[str, Any], precision: Precision, attention: str) -> str:
    """Tells references apart whose answers differ: by the data, the weights, and how they are computed with.

    Args:
        record: run.json, which all ranks read: they must find the same.
    """
    decisive = {
        "data": record["data_hash"],
        "model": recipe.model.model_dump(mode="json"),
        "seed": recipe.seed if recipe.model.init == "random" else None,
        "weights": record.get("weights_hash"),
        "adapters": record.get("adapters"),
        "computed": [precision.compute, precision.weights, attention],
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


@contextmanager
def _as_it_is(objective: PreferenceObjective) -> Iterator[LogProbs]:
    was_training = objective.training
    objective.eval()
    yield lambda batch: _ask(objective, batch)
    objective.train(was_training)


@contextmanager
def _another_model(
    recipe: Recipe,
    directory: Path,
    attention: AttentionChoice,
    strategy: Strategy,
    precision: Precision,
    tokens: int,
) -> Iterator[LogProbs]:
    section, config = _section_of(recipe, directory)
    # Nothing of it is trained, so it needs no more digits than it is multiplied in.
    as_computed = Precision(precision.compute, precision.compute, precision.reason, precision.device_type)
    model = load_model(
        section, "preference", directory, config,
        precision=as_computed, implementation=attention.implementation(), vocabulary=0, seed=recipe.seed,
    ).to(strategy.device.torch_device)  # fmt: skip
    if (rows := model.get_input_embeddings().weight.shape[0]) < tokens:
        raise RecipeError(
            f"the reference model knows {rows:,} tokens, the model that is trained {tokens:,}",
            remedy="use a reference with the same tokenizer",
            where=directory,
        )
    model.requires_grad_(False)
    objective = make_objective(model, recipe, head_form=None, mean_over_ranks=strategy.mean).eval()
    assert isinstance(objective, PreferenceObjective)
    yield lambda batch: _ask(objective, batch)


def _section_of(recipe: Recipe, directory: Path) -> tuple[ModelSection, Any]:
    """The model section of a reference, and its config."""
    section = recipe.model.model_copy(update={"path": str(directory), "init": "pretrained", "new_tokens": []})
    return section, read_config(section, directory)


def _ask(objective: PreferenceObjective, batch: DeviceBatch) -> DoubleFloat:
    found = objective(batch, only_log_probs=True)
    assert isinstance(found, DoubleFloat)
    return found
