"""Every weight may change."""

from __future__ import annotations

from typing import Any

from ascendtune.recipe.method import MethodSection


def tune_all(model: Any, section: MethodSection) -> Any:
    return model.requires_grad_(True)
