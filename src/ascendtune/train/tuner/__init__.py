"""Which weights may change?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from ascendtune.recipe.method import MethodSection

TABLE = {
    "full": "ascendtune.train.tuner.full:tune_all",
    "freeze": "ascendtune.train.tuner.freeze:tune_layers",
    "lora": "ascendtune.train.tuner.lora:add_adapter",
}


def apply_tuner(model: Any, section: MethodSection, adapters: Sequence[Path] = ()) -> Any:
    """Freeze, wrap or leave `model` as the method says; returns what is saved at the end (the model or a PeftModel).

    Args:
        adapters: what `method.lora.start_from` came to.
    """
    tune: Callable[..., Any] = resolve_name(TABLE[section.tuner])
    return tune(model, section, adapters) if adapters else tune(model, section)


def trainable_share(model: Any) -> tuple[int, int]:
    """(trainable, all) parameters; tied ones count once."""
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(count for count, trains in counts if trains), sum(count for count, _ in counts)
