"""Values that `ascendtune init` could not decide: training refuses them by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ascendtune.core.document import Document, Path_
from ascendtune.core.errors import RecipeError

TODO = "TODO"


def require_decided(document: Document) -> None:
    """Raise if a value is still `TODO`.

    Raises:
        RecipeError: lists every such key, with file and line of the first.
    """
    if open_keys := list(_open(document.values, ())):
        names = ", ".join(".".join(map(str, path)) for path in open_keys)
        raise RecipeError(
            f"still {TODO}: {names}",
            code="recipe-todo",
            remedy="replace each TODO by a value; for columns it is the name of a column in the file",
            where=document.place(open_keys[0]),
        )


def _open(value: Any, path: Path_) -> Iterator[Path_]:
    if value == TODO:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _open(each, (*path, key))
