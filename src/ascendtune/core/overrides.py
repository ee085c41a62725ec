"""Arguments `a.b=c` of the command line, which change a document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ascendtune.core.document import Document, Path_, parse_value
from ascendtune.core.errors import RecipeError, all_errors
from ascendtune.core.mask import without_secrets
from ascendtune.core.units import count_of

_INDEX = re.compile(r"[0-9]{1,6}")


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Apply `a.b=c` arguments in place; the value is read as YAML.

    Raises:
        RecipeError: all words without `=` or value, or with a path through something that is not a section.
    """
    with all_errors() as check:
        for word in overrides:
            with check():
                _apply(document, word)


def _apply(document: Document, word: str) -> None:
    dotted, equals, text = word.partition("=")
    where = f"command line '{without_secrets(word)}'"
    if not equals or not all(dotted.split(".")):
        raise RecipeError(
            "not an override: '=' or a key is missing",
            code="invalid-override",
            remedy="write it as key=value, e.g. optim.learning_rate=1e-4",
            where=where,
        )
    if not text.strip():
        # A shell variable that is not set; otherwise the default would be used silently.
        raise RecipeError(
            f"'{dotted}' has no value",
            code="invalid-override",
            remedy=f"give one, or {dotted}=null for none",
            where=where,
        )
    path = tuple(int(part) if _INDEX.fullmatch(part) else part for part in dotted.split("."))
    if not _set(document.values, path, parse_value(text, where)):
        raise RecipeError(
            f"'{dotted}' does not lead to a key: {_dead_end(document.values, path)}",
            code="override-path-missing",
            remedy="`ascendtune recipe schema` lists the keys",
            where=where,
        )
    for length in range(1, len(path)):
        document.places.setdefault(path[:length], where)
    for known in [known for known in document.places if known[: len(path)] == path]:
        del document.places[known]
    document.places[path] = where


def _set(target: Any, path: Path_, value: Any) -> bool:
    """Set the value at `path` below `target`, creating sections on the way; False if the path does not lead to a
    key."""
    part, *rest = path
    if isinstance(target, list):
        if not isinstance(part, int) or part >= len(target):
            return False
    elif not isinstance(target, dict) or not isinstance(part, str):
        return False
    if not rest:
        target[part] = value
        return True
    if isinstance(target, dict) and target.get(part) is None:
        target[part] = {}
    return _set(target[part], tuple(rest), value)


def _dead_end(values: Any, path: Sequence[str | int]) -> str:
    """Describe where a path ends before its last part, and the value there."""
    for length, part in enumerate(path):
        place = ".".join(map(str, path[:length])) or "the document"
        if isinstance(values, list):
            if not isinstance(part, int):
                return f"{place} is a list, whose entries are {place}.0, {place}.1, …"
            if part >= len(values):
                return f"{place} has {count_of(len(values), 'entry', 'entries')}, numbered from 0"
        elif not isinstance(values, dict):
            shown = "null" if values is None else without_secrets(str(values))
            return f"{place} is '{shown[:60]}', which has no keys below it"
        elif part not in values:
            break
        values = values[part]
    return "there is no such section"
