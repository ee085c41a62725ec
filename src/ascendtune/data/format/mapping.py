"""Maps a data set's own names of columns and turns to those of a format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from ascendtune.data.format.turns import listed
from ascendtune.data.spec import DatasetSpec

Made = TypeVar("Made")


def available(spec: DatasetSpec, columns: Collection[str]) -> set[str]:
    """The names that a row has: those that `spec.columns` maps to a column, and columns that it does not mention."""
    mapped = {word for word, column in spec.columns.items() if column is not None}
    return mapped | {column for column in columns if column not in _mentioned(spec, columns)}


def has_column(columns: Collection[str], name: str) -> bool:
    """Whether rows with `columns` may have a value for `name`: a column, or a path inside one."""
    return name in columns or ("." in name and name.partition(".")[0] in columns)


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of column `name`, or of the path `column.key.0` if there is no such column; None if it does not
    exist."""
    if name in row or "." not in name:
        return row.get(name)
    value: Any = row
    for part in name.split("."):
        value = listed(value)
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _mentioned(spec: DatasetSpec, columns: Collection[str]) -> set[str | None]:
    """Columns that are read under other names, completely or partly, and those names."""
    inside = {each.partition(".")[0] for each in spec.columns.values() if each is not None and each not in columns}
    return {*spec.columns, *spec.columns.values(), *inside}


def translated(convert: Callable[[Mapping[str, Any]], Made], spec: DatasetSpec) -> Callable[[Mapping[str, Any]], Made]:
    """`convert` for rows with the column names of the file."""
    columns = spec.columns

    def convert_renamed(row: Mapping[str, Any]) -> Made:
        mentioned = _mentioned(spec, row)
        kept = {column: value for column, value in row.items() if column not in mentioned}
        mapped = {word: value_at(row, column) for word, column in columns.items() if column is not None}
        return convert(kept | mapped)

    renamed = convert_renamed if columns else convert
    return _with_tags(renamed, spec) if spec.tags else renamed


def _with_tags(convert: Callable[[Mapping[str, Any]], Made], spec: DatasetSpec) -> Callable[[Mapping[str, Any]], Made]:
    """`convert` for rows whose turns have other names than ShareGPT's. A speaker without a tag is an unknown role."""
    speaker, value = spec.tags.get("from", "from"), spec.tags.get("value", "value")
    roles = {written: role for role, written in spec.tags.items() if role not in ("from", "value")}

    def turn(given: Any) -> Any:
        if not isinstance(given, dict) or speaker not in given:
            return given
        kept = {key: rest for key, rest in given.items() if key not in (speaker, value)}
        name = given[speaker]
        named = roles.get(name, f"{name} (no tag names it)") if isinstance(name, str) else name
        return kept | {"from": named, "value": given.get(value)}

    def turns_of(content: Any) -> Any:
        """The value of JSON text that contains turns; other text is returned unchanged, since an answer may be JSON."""
        parsed = listed(content)
        turns = parsed if isinstance(parsed, list) else [parsed]
        return parsed if any(isinstance(each, dict) and speaker in each for each in turns) else content

    def convert_renamed(row: Mapping[str, Any]) -> Made:
        values = {column: turns_of(content) if column in _OF_TURNS else content for column, content in row.items()}
        return convert(
            {
                column: [turn(each) for each in content] if isinstance(content, list) else turn(content)
                for column, content in values.items()
            }
        )

    return convert_renamed


_OF_TURNS = ("conversations", "messages", "prompt", "completion", "chosen", "rejected")
