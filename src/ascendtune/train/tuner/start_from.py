"""Continues training an adapter from disk: `start_from` of method.lora and method.oft."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import AscendtuneError, RecipeError
from ascendtune.core.foreign_json import first_line
from ascendtune.hub.adapter_files import require_all_adapter_weights
from ascendtune.recipe.method import MethodSection
from ascendtune.train.deferred_weights import make_room
from ascendtune.train.tuner.frozen_adapters import TRAINED

# Modules that PEFT's task SEQ_CLS adds to modules_to_save.
_SCORE = ("classifier", "score")


def continue_adapter(model: Any, section: MethodSection, directory: Path, config: Any, **options: Any) -> Any:
    """A PeftModel around `model` whose trained adapter is the one in `directory`.

    Args:
        config: PEFT's config from `directory`; size, target and form stay those of the file.
        options: fields of `config` that concern training, with the recipe's values.

    Raises:
        RecipeError: the adapter does not fit the model.
    """
    from peft import get_peft_model, load_peft_weights

    scores = section.stage == "reward"
    whole = [name for name in config.modules_to_save or () if name not in _SCORE]
    config = replace(
        config,
        # With a task type PEFT would require a score head also for adapters that are added later.
        task_type=None,
        modules_to_save=[*whole, "score"] if scores else whole or None,
        base_model_name_or_path=model.name_or_path,
        # The revision was that of the earlier base.
        revision=None,
        inference_mode=False,
        **options,
    )
    with errors_as_recipe_errors(directory, section):
        weights = load_peft_weights(str(directory), device="cpu")
        if scores:
            # An adapter of a language model has no score head: it starts as without an adapter.
            weights.setdefault("base_model.model.score.weight", model.score.weight)
        tuned = get_peft_model(model, config, adapter_name=TRAINED)
        load_adapter_weights(tuned, TRAINED, weights, directory)
    return tuned


@contextmanager
def errors_as_recipe_errors(adapter: Path, section: MethodSection) -> Iterator[None]:
    """Raise PEFT's errors, which have various classes for invalid values, as RecipeError."""
    try:
        yield
    except Exception as error:
        raise RecipeError(
            f"method.{section.tuner}.start_from: the adapter does not fit this model: "
            f"{error.what if isinstance(error, AscendtuneError) else first_line(error)}",
            code="adapter-base-mismatch",
            remedy="give adapters of this base model, and model.new_tokens as they were trained with",
            where=adapter,
        ) from error


def load_adapter_weights(tuned: Any, name: str, weights: dict[str, torch.Tensor], directory: Path) -> None:
    """Load the weights of the adapter in `directory` into the adapter `name`.

    Args:
        weights: name in the file -> tensor of any shape and dtype.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils.other import ModulesToSaveWrapper
    from peft.utils.transformers_weight_conversion import convert_peft_adapter_state_dict_for_transformers

    for module in tuned.modules():
        if isinstance(module, ModulesToSaveWrapper) and name in module.modules_to_save:
            for parameter in module.modules_to_save[name].parameters():
                make_room(parameter)
    result = set_peft_model_state_dict(tuned, weights, adapter_name=name)
    if missing := [each for each in result.missing_keys if f".{name}." in f"{each}."]:
        raise ValueError(f"its file has no {missing[0].replace(f'.{name}', '')}")
    # Without this option PEFT would request the base model's vocabulary from the hub.
    expected_names = set(get_peft_model_state_dict(tuned, adapter_name=name, save_embedding_layers=False))
    names = convert_peft_adapter_state_dict_for_transformers(tuned, tuned.peft_config[name], weights, name)
    require_all_adapter_weights(names, expected_names, directory)


def task_type(section: MethodSection) -> str:
    """PEFT's task type for the stage."""
    return "SEQ_CLS" if section.stage == "reward" else "CAUSAL_LM"
