"""An adapter that is on disk already and trains further: `start_from` of method.lora and method.oft."""

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
from ascendtune.train.tuner.frozen_adapters import TRAINED

# What PEFT's task SEQ_CLS adds to modules_to_save.
_SCORE = ("classifier", "score")


def continue_adapter(model: Any, section: MethodSection, directory: Path, config: Any, **options: Any) -> Any:
    """A PeftModel around `model` whose trained adapter is the one in `directory`.

    Args:
        config: PEFT's, read from `directory`. Size, target and form stay the file's.
        options: fields of `config` that belong to training, so that they are the recipe's.

    Raises:
        RecipeError: the adapter does not fit the model.
    """
    from peft import get_peft_model, load_peft_weights

    scores = section.stage == "reward"
    whole = [name for name in config.modules_to_save or () if name not in _SCORE]
    config = replace(
        config,
        # With a task PEFT would want a score of adapters that are added later, too.
        task_type=None,
        modules_to_save=[*whole, "score"] if scores else whole or None,
        base_model_name_or_path=model.name_or_path,
        # Of the earlier base.
        revision=None,
        inference_mode=False,
        **options,
    )
    with fitting_this_model(directory, section):
        weights = load_peft_weights(str(directory), device="cpu")
        if scores:
            # One that has answered so far brings none: scoring begins as it does without an adapter.
            weights.setdefault("base_model.model.score.weight", model.score.weight)
        tuned = get_peft_model(model, config, adapter_name=TRAINED)
        load_adapter_weights(tuned, TRAINED, weights, directory)
    return tuned


@contextmanager
def fitting_this_model(adapter: Path, section: MethodSection) -> Iterator[None]:
    """PEFT raises what its classes happen to raise on values that cannot be; here it becomes a RecipeError."""
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
    """Put the weights of the adapter in `directory` into the adapter `name`.

    Args:
        weights: each of any shape and type, by its name in the file.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils.transformers_weight_conversion import convert_peft_adapter_state_dict_for_transformers

    result = set_peft_model_state_dict(tuned, weights, adapter_name=name)
    if absent := [each for each in result.missing_keys if f".{name}." in f"{each}."]:
        raise ValueError(f"its file has no {absent[0].replace(f'.{name}', '')}")
    # Without save_embedding_layers PEFT would ask the hub for the base model's vocabulary.
    held = set(get_peft_model_state_dict(tuned, adapter_name=name, save_embedding_layers=False))
    names = convert_peft_adapter_state_dict_for_transformers(tuned, tuned.peft_config[name], weights, name)
    require_all_adapter_weights(names, held, directory)


def task_type(section: MethodSection) -> str:
    """PEFT's name of what the model is for."""
    return "SEQ_CLS" if section.stage == "reward" else "CAUSAL_LM"
