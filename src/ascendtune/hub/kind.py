"""What lies on a hub, and which error speaks of it."""

from __future__ import annotations

from typing import Literal

from ascendtune.core.errors import DataError, RecipeError

Kind = Literal["model", "dataset"]


def input_error(kind: Kind) -> type[RecipeError] | type[DataError]:
    return RecipeError if kind == "model" else DataError


def noun(kind: Kind) -> str:
    return "model" if kind == "model" else "data set"
