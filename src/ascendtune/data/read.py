"""Rows of values from a data set's files; each row knows its place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import RawRow
from ascendtune.data.encoding import Encoding
from ascendtune.data.files import SUFFIXES, data_files, data_suffix, head
from ascendtune.data.json_rows import rows_of_json
from ascendtune.data.spec import DatasetSpec
from ascendtune.data.table_rows import rows_of_csv, rows_of_markdown, rows_of_parquet, rows_of_text


def read_rows(spec: DatasetSpec, path: Path | None = None) -> Iterator[RawRow]:
    """The rows of a data set, at most `spec.limit`; files are opened one after the other, as rows are taken.

    Args:
        path: the location of the data set; default is `spec.path`.

    Raises:
        DataError: no such file, no rows, or a file that cannot be read; with file, line and remedy.
    """
    files = data_files(spec, path)
    return islice(
        chain.from_iterable(rows_of_file(file, spec.encoding, header=spec.header) for file in files), spec.limit
    )


_MOST_OF_BEGINNING = 64 << 20
"""Characters."""


def first_rows(rows: Iterator[RawRow], count: int) -> list[RawRow]:
    """The next `count` rows, or fewer if they are very large: each row of a small Parquet file may have megabytes."""
    found, size = list[RawRow](), 0
    for row in islice(rows, count):
        found.append(row)
        size += _characters_of(row.values)
        if size > _MOST_OF_BEGINNING:
            break
    return found


def _characters_of(values: dict[str, Any]) -> int:
    """Not recursive: rows of JSON may be nested as deeply as Python allows."""
    size, waiting = 0, list[Any]([values])
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return size


def rows_of_file(path: Path, encoding: Encoding = "auto", *, header: bool = True) -> Iterator[RawRow]:
    """The rows of one file, whose format its suffix determines, or its content without a known suffix.

    Args:
        encoding, header: as in a data set of a recipe.
    """
    match data_suffix(path) or _suffix_by_content(path):
        case ".csv":
            rows = rows_of_csv(path, encoding=encoding, header=header)
        case ".tsv":
            rows = rows_of_csv(path, delimiter="\t", encoding=encoding, header=header)
        case ".md" | ".markdown":
            rows = rows_of_markdown(path, encoding)
        case ".txt":
            rows = rows_of_text(path, encoding)
        case ".parquet" | ".arrow":
            rows = rows_of_parquet(path)
        case _:
            rows = rows_of_json(path, encoding)
    first = next(rows, None)
    if first is None:
        raise _no_rows(path)
    yield first
    yield from rows


def _suffix_by_content(path: Path) -> str:
    start = head(path)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"PAR1"):
        return ".parquet"
    if text.startswith((b"{", b"[")):
        return ".json"
    if not text:
        raise _no_rows(path)
    raise DataError(
        "neither the name nor the content determines the format of this file",
        code="data-format-unknown",
        remedy=f"name it after its format: {', '.join(SUFFIXES)} (or .gz)",
        where=path,
    )


def _no_rows(path: Path) -> DataError:
    what = "the file has no rows" if head(path, 64).strip() else "the file is empty"
    return DataError(
        what,
        code="data-file-empty",
        remedy="give a file with at least one row, or remove it from the recipe",
        where=path,
    )
