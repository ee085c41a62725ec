"""Low-rank adapters by PEFT: the base is frozen and stays as it is on disk, what trains is fp32.

One adapter trains. Others may stand beside it, frozen: earlier ones of `start_from`, or the one that takes a PiSSA
start back. All are added to the base, none is ever merged into it: so what is trained on is what the base's file says,
and the sum of the adapters is what leaves (`fold`).
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ascendtune.core.errors import RecipeError
from ascendtune.train.method import LoraSection, MethodSection
from ascendtune.train.tuner.fold import TRAINED, companions, remember_companions
from ascendtune.train.tuner.pissa import start_as_principal_part

# What PEFT's task SEQ_CLS adds to modules_to_save.
_SCORE = ("classifier", "score")


def add_adapter(model: Any, section: MethodSection, adapters: Sequence[Path] = ()) -> Any:
    """A PeftModel around `model`; the adapters' layers are put into `model` itself.

    Args:
        adapters: directories to start from: the last one trains, the others stay.

    Raises:
        RecipeError: a target is not a module of this model, or an adapter does not fit it.
    """
    # PEFT asks the model by a name that transformers has just renamed; nothing a user could mend.
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        # Table and head trained whole part ways; the file holds both, and `merge` writes both.
        warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
        tuned = _continued(model, section, adapters) if adapters else _begun(model, section)
    _only_one_trains(tuned)
    return tuned


def scale_of(lora: LoraSection) -> float:
    """Alpha; twice the rank when the recipe leaves it open."""
    return lora.alpha if lora.alpha is not None else 2.0 * lora.rank


def whole_modules(model: Any, lora: LoraSection) -> list[str]:
    """Names, as in `modules_to_save`, of the modules that are trained whole."""
    if lora.modules_to_save != "all-embeddings":
        return lora.modules_to_save
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    return [name.rpartition(".")[2] for name, module in model.named_modules() if any(module is each for each in tables)]


def _begun(model: Any, section: MethodSection) -> Any:
    from peft import LoraConfig, get_peft_model

    lora = section.lora
    for key, names in (("target", lora.target), ("modules_to_save", lora.modules_to_save)):
        if isinstance(names, list):
            _require_modules(model, f"method.lora.{key}", names)
    config = LoraConfig(
        # PEFT trains and saves the score of a reward model whole: it begins as random numbers.
        task_type=_task_type(section),
        target_modules=lora.target,
        r=lora.rank,
        lora_alpha=scale_of(lora),
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        modules_to_save=whole_modules(model, lora) or None,
    )
    tuned = get_peft_model(model, config)
    if lora.init == "pissa":
        start_as_principal_part(tuned)
    return tuned


def _continued(model: Any, section: MethodSection, adapters: Sequence[Path]) -> Any:
    from peft import LoraConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict

    *earlier, last = adapters
    scores = section.stage == "reward"
    config = LoraConfig.from_pretrained(last)
    whole = [name for name in config.modules_to_save or () if name not in _SCORE]
    # Rank, alpha and target are the file's. Dropout belongs to training, so it is the recipe's.
    config = replace(
        config,
        # With a task PEFT would want a score of the earlier adapters too.
        task_type=None,
        modules_to_save=[*whole, "score"] if scores else whole or None,
        lora_dropout=section.lora.dropout,
        base_model_name_or_path=model.name_or_path,
        inference_mode=False,
    )
    path = last
    try:
        weights = load_peft_weights(str(last), device="cpu")
        if scores:
            # One that has answered so far brings none: scoring begins as it does without an adapter.
            weights.setdefault("base_model.model.score.weight", model.score.weight)
        tuned = get_peft_model(model, config, adapter_name=TRAINED)
        result = set_peft_model_state_dict(tuned, weights, adapter_name=TRAINED)
        if absent := [name for name in result.missing_keys if f".{TRAINED}." in f"{name}."]:
            raise ValueError(f"its file has no {absent[0].replace(f'.{TRAINED}', '')}")
        for number, path in enumerate(earlier, start=1):
            tuned.load_adapter(path, adapter_name=f"earlier_{number}")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise RecipeError(
            f"method.lora.start_from: the adapter does not fit this model: {str(error).strip().splitlines()[0]}",
            remedy="give adapters of this base model, and model.new_tokens as they were trained with",
            where=path,
        ) from error
    config.task_type = _task_type(section)
    return tuned


def _task_type(section: MethodSection) -> str:
    return "SEQ_CLS" if section.stage == "reward" else "CAUSAL_LM"


def _only_one_trains(tuned: Any) -> None:
    frozen = companions(tuned)
    if frozen:
        remember_companions(tuned)
        tuned.base_model.set_adapter([TRAINED, *frozen])
    for name, parameter in tuned.named_parameters():
        if any(f".{each}." in f"{name}." for each in frozen):
            parameter.requires_grad_(False)
        elif parameter.requires_grad:
            # Whole modules are copied in the base's type, in which small steps are lost.
            parameter.data = parameter.data.to(torch.float32)


def _require_modules(model: Any, key: str, names: list[str]) -> None:
    present = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding)
    }
    whole = {name for name, _ in model.named_modules()}
    for name in names:
        if name in present or any(full == name or full.endswith("." + name) for full in whole):
            continue
        close = difflib.get_close_matches(name, present, n=1)
        raise RecipeError(
            f"{key}: the model has no module '{name}'",
            remedy=f"did you mean '{close[0]}'?" if close else f"choose from: {', '.join(sorted(present))}",
        )
