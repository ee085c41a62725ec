"""Which format a data set has, and what its columns are called."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import BadRow, Conversation, RawRow
from ascendtune.data.spec import DatasetSpec

Convert = Callable[[Mapping[str, Any]], Conversation | BadRow]

# Each module has WORDS (our names of its columns), matches(columns) and convert(row).
FORMATS = {
    "alpaca": "ascendtune.data.format.alpaca",
    "sharegpt": "ascendtune.data.format.sharegpt",
    "messages": "ascendtune.data.format.messages",
    "prompt_completion": "ascendtune.data.format.prompt_completion",
    "text": "ascendtune.data.format.text",
}


def choose_format(spec: DatasetSpec, rows: Sequence[RawRow]) -> tuple[str, Convert]:
    """The name of the format and the function that reads its rows, `spec.columns` applied.

    Args:
        rows: the first rows, at least one; their columns together stand for the whole data set.

    Raises:
        DataError: no format or several fit the columns, or `spec.columns` names something that is not there.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row.values))
    complaint = _wrong_mapping(spec, columns)
    if not complaint:
        available = {column for column in columns if column not in spec.columns.values()} | set(spec.columns)
        fitting = [name for name in FORMATS if _module(name).matches(available)]
        name = spec.format if spec.format != "auto" else fitting[0] if len(fitting) == 1 else None
        if name and name in fitting:
            convert: Convert = _module(name).convert
            return name, _renaming(convert, spec.columns) if spec.columns else convert
        complaint = _unfit(name, columns, fitting)
    what, remedy = complaint
    raise DataError(what, remedy=remedy, where=rows[0].place)


def _renaming(convert: Convert, columns: Mapping[str, str]) -> Convert:
    taken = set(columns.values())

    def renamed(row: Mapping[str, Any]) -> Conversation | BadRow:
        kept = {column: value for column, value in row.items() if column not in taken}
        return convert(kept | {word: row.get(column) for word, column in columns.items()})

    return renamed


def _unfit(name: str | None, columns: Sequence[str], fitting: Sequence[str]) -> tuple[str, str]:
    """What is wrong and what to do, when the columns do not tell one format or lack some of format `name`."""
    found = ", ".join(columns) or "(none)"
    if name:
        needed = _required(_module(name))
        what = (
            f"the format {name} needs the column{'s' if len(needed) > 1 else ''} {_and(needed)}; this file has: {found}"
        )
        return what, _mapping_remedy(name, needed, columns)
    if fitting:
        return f"the columns {found} fit several formats: {_and(fitting)}", f"say which: format: {fitting[0]}"
    remedy = _mapping_remedy("prompt_completion", ["prompt", "completion"], columns)
    return f"no format fits the columns {found}", remedy


def _wrong_mapping(spec: DatasetSpec, columns: Sequence[str]) -> tuple[str, str] | None:
    names = FORMATS if spec.format == "auto" else [spec.format]
    words = list(dict.fromkeys(word for name in names for word in _module(name).WORDS))
    for word, column in spec.columns.items():
        if word not in words:
            return f"columns: '{word}' is no word of the format {spec.format}", _nearest(word, words, "words")
        if column not in columns:
            return f"columns: there is no column '{column}'", _nearest(column, columns, "columns")
    return None


def _nearest(word: str, valid: Sequence[str], kind: str) -> str:
    close = difflib.get_close_matches(word, valid, n=1)
    suggestion = f"did you mean '{close[0]}'? " if close else ""
    return f"{suggestion}the {kind} are: {', '.join(valid)}"


def _mapping_remedy(name: str, words: Sequence[str], columns: Sequence[str]) -> str:
    """A line that can be copied into the recipe; which column is which, only the user knows."""
    shown = list(columns[: len(words)]) + ["…"] * (len(words) - len(columns))
    mapping = ", ".join(f"{word}: {column}" for word, column in zip(words, shown, strict=True))
    return f"say which column is which, e.g. {{format: {name}, columns: {{{mapping}}}}}"


def _required(module: ModuleType) -> list[str]:
    """The words without which the format does not match."""
    words = list(module.WORDS)
    return [word for word in words if not module.matches([other for other in words if other != word])]


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _module(name: str) -> ModuleType:
    return import_module(FORMATS[name])
