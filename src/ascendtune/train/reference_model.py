"""Which model is the reference, made ready to be asked: the policy before training, its base, or another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import RecipeError
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.model import choose_attention, load_model, read_config
from ascendtune.train.precision import Precision
from ascendtune.train.recipe import Recipe
from ascendtune.train.stage import make_objective
from ascendtune.train.stage.preference import PreferenceObjective
from ascendtune.train.strategy.base import Strategy

LogProbs = Callable[[DeviceBatch], torch.Tensor]


def reference_model(
    recipe: Recipe,
    directory: str | None,
    objective: PreferenceObjective,
    tuned: Any,
    strategy: Strategy,
    precision: Precision,
    tokens: int,
) -> Callable[[], AbstractContextManager[LogProbs]]:
    """What makes the reference ready while a context lasts.

    Args:
        directory: of another model, where the recipe names one.
        tuned: the model, or the PeftModel around it, before its first step.
        tokens: size of the vocabulary that the data use.
    """
    if directory is not None:
        return lambda: _another_model(recipe, Path(directory), strategy, precision, tokens)
    # An adapter that goes on is part of the model as it is before training.
    is_base = hasattr(tuned, "disable_adapter") and not recipe.method.lora.start_from
    without_adapter = tuned.disable_adapter if is_base else nullcontext
    return lambda: _as_it_is(objective, without_adapter)


@contextmanager
def _as_it_is(
    objective: PreferenceObjective, without_adapter: Callable[[], AbstractContextManager[Any]]
) -> Iterator[LogProbs]:
    was_training = objective.training
    trains = [(parameter, parameter.requires_grad) for parameter in objective.parameters()]
    objective.eval()
    with without_adapter():
        yield lambda batch: _ask(objective, batch)
    objective.train(was_training)
    # Switching adapters on again makes all of them trainable, also those that must stay as they are.
    for parameter, trained in trains:
        parameter.requires_grad_(trained)


@contextmanager
def _another_model(
    recipe: Recipe, directory: Path, strategy: Strategy, precision: Precision, tokens: int
) -> Iterator[LogProbs]:
    section = recipe.model.model_copy(update={"path": str(directory), "init": "pretrained", "new_tokens": []})
    config = read_config(section, directory)
    attention, _ = choose_attention(section, config, strategy.device.attention)
    # Nothing of it is trained, so it needs no more digits than it is multiplied in.
    as_computed = Precision(precision.compute, precision.compute, precision.reason, precision.device_type)
    model = load_model(
        section, "preference", directory, config,
        precision=as_computed, attention=attention, vocabulary=0, seed=recipe.seed,
    ).to(strategy.device.torch_device)  # fmt: skip
    if (rows := model.get_input_embeddings().weight.shape[0]) < tokens:
        raise RecipeError(
            f"the reference model knows {rows:,} tokens, the model that is trained {tokens:,}",
            remedy="use a reference with the same tokenizer",
            where=directory,
        )
    model.requires_grad_(False)
    objective = make_objective(model, recipe, plain_head=False, mean_over_ranks=strategy.mean).eval()
    assert isinstance(objective, PreferenceObjective)
    yield lambda batch: _ask(objective, batch)


def _ask(objective: PreferenceObjective, batch: DeviceBatch) -> torch.Tensor:
    found = objective(batch, only_log_probs=True)
    assert isinstance(found, torch.Tensor)
    return found
