"""Low-rank adapters by PEFT: the base is frozen, the adapter is fp32."""

from __future__ import annotations

import difflib
import warnings
from typing import Any

from torch import nn

from ascendtune.core.errors import RecipeError
from ascendtune.train.method import LoraSection, MethodSection


def add_adapter(model: Any, section: MethodSection) -> Any:
    """A PeftModel around `model`; the adapter's layers are put into `model` itself.

    Raises:
        RecipeError: a target is not a module of this model.
    """
    from peft import LoraConfig, get_peft_model

    lora = section.lora
    for key, names in (("target", lora.target), ("modules_to_save", lora.modules_to_save)):
        if isinstance(names, list):
            _require_modules(model, f"method.lora.{key}", names)
    config = LoraConfig(
        task_type="SEQ_CLS" if section.stage == "reward" else "CAUSAL_LM",
        target_modules=lora.target,
        r=lora.rank,
        lora_alpha=scale_of(lora),
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        modules_to_save=lora.modules_to_save or None,
    )
    # PEFT asks the model by a name that transformers has just renamed; nothing a user could mend.
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return get_peft_model(model, config)


def scale_of(lora: LoraSection) -> float:
    """Alpha; twice the rank when the recipe leaves it open."""
    return lora.alpha if lora.alpha is not None else 2.0 * lora.rank


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
