"""Bounds how much longer a tokenizer's normalizer or decoder makes a text: without memory the library aborts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import remedy_for_damaged

_MOST_GROWTH = 1000
"""Characters for one; NFKD makes 18 of one, and a replacement of spaces three bytes."""


def require_bounded_growth(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Raise if the replacements in tokenizer.json, one after another, make a text many times longer.

    Args:
        path: of tokenizer.json.

    Raises:
        RecipeError: the text may become more than 1,000 times as long.
    """
    for name in ("normalizer", "decoder"):
        part = getattr(backend, name)
        if part is not None and (growth := _growth_of(json.loads(part.__getstate__()))) > _MOST_GROWTH:
            raise RecipeError(
                f"the {name} in tokenizer.json makes a text up to {growth:.3g} times as long",
                code="tokenizer-expands-text",
                remedy=remedy_for_damaged(path),
                where=path,
            )


def _growth_of(part: dict[str, Any]) -> float:
    """The greatest ratio of the lengths of a text after and before."""
    growth = 1.0
    for each in part.get("normalizers") or part.get("decoders") or ():
        growth *= _growth_of(each)
    if part.get("type") == "Replace":
        # A regular expression may match an empty text, before each character and at the end.
        shortest = len(part["pattern"].get("String", ""))
        added = len(part["content"]) / max(shortest, 1)
        growth = max(growth, added if shortest else 1 + 2 * added)
    elif part.get("type") == "Prepend":
        growth = 1.0 + len(part["prepend"])
    return growth
