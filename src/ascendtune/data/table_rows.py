"""Rows of tables: CSV, TSV, Parquet and Arrow; and of text and Markdown files, with one column `text`."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

from ascendtune.core.errors import DataError, MachineError
from ascendtune.data.conversation import RawRow, SourceFile
from ascendtune.data.encoding import Encoding
from ascendtune.data.files import data_suffix, opened, read_lines, read_text

_LONGEST_FIELD = 2**31 - 1


def rows_of_csv(
    path: Path, delimiter: str | None = None, *, encoding: Encoding = "auto", header: bool = True
) -> Iterator[RawRow]:
    """The rows below the header; a row's number is the line on which it begins.

    Columns without a name at the end (Excel writes them) are dropped if they are empty in every row. An earlier one,
    such as the index that pandas writes, is called column_1, by its position.

    Args:
        delimiter: default is the one that divides the first lines into equally many fields (`delimiter_of`).
        header: whether the first row names the columns; otherwise it is a row, and the columns are column_1, column_2,
            …

    Raises:
        DataError: a header without names, a ragged line, a quote that is never closed.
    """
    rows = _rows_of_fields(path, delimiter or delimiter_of(path, encoding), encoding)
    first = next(rows, None)
    if first is None:
        return
    names = _checked_header(first[1], path, first[0]) if header else _numbered_columns(first[1])
    source = SourceFile(path)
    for line, fields in rows if header else chain([first], rows):
        if len(fields) < len(names) or any(fields[len(names) :]):
            raise DataError(
                f"this row has {len(fields)} fields, the {'header' if header else 'first row'} has {len(names)}",
                code="invalid-csv",
                remedy="enclose in double quotes every field that contains the delimiter, a quote or a line break",
                where=source.place(line),
            )
        yield RawRow(dict(zip(names, fields, strict=False)), source, line)


def _rows_of_fields(path: Path, delimiter: str, encoding: Encoding) -> Iterator[tuple[int, list[str]]]:
    """The line on which each row begins, and its fields; empty rows are skipped."""
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader((line for _, line in read_lines(path, encoding)), delimiter=delimiter, strict=True)
    begin = 1
    try:
        for fields in reader:
            if fields:
                yield begin, fields
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"not valid CSV: {error}",
            code="invalid-csv",
            remedy='check for an unclosed quote; write a quote inside a field as ""; '
            r"convert line ends of an old Mac with tr '\r' '\n'",
            where=f"{path}:{begin}",
        ) from error


_DELIMITERS = (",", ";", "\t", "|")
_ROWS_THAT_TELL_THE_DELIMITER = 20
_CHARACTERS_THAT_TELL_THE_DELIMITER = 1 << 20


def _numbered_columns(fields: list[str]) -> list[str]:
    return [f"column_{number}" for number in range(1, len(fields) + 1)]


def delimiter_of(path: Path, encoding: Encoding = "auto") -> str:
    """The first of comma, semicolon, tab and bar that divides every one of the first rows into the header's fields.

    Excel writes semicolons if the comma is the decimal sign. A comma if none matches: then there is one column, or the
    file is damaged, which the reading reports.
    """
    lines, characters = list[str](), 0
    for _, line in read_lines(path, encoding):
        lines.append(line)
        characters += len(line)
        if characters > _CHARACTERS_THAT_TELL_THE_DELIMITER:
            break
    for delimiter in _DELIMITERS:
        try:
            rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            # A carriage return within a line and no quotes.
            continue
        if len(rows) > 1 and characters > _CHARACTERS_THAT_TELL_THE_DELIMITER:
            # It may be cut off in a field with line breaks.
            rows.pop()
        sizes = {len(row) for row in rows[:_ROWS_THAT_TELL_THE_DELIMITER]}
        if len(sizes) == 1 and sizes != {1}:
            return delimiter
    return ","


def _checked_header(names: list[str], path: Path, line: int) -> list[str]:
    while names and not names[-1].strip():
        names = names[:-1]
    names = [name if name.strip() else f"column_{number}" for number, name in enumerate(names, 1)]
    times = Counter(names)
    twice = [name for name in names if times[name] > 1]
    if twice or not names:
        raise DataError(
            f"the header has a duplicate name: '{twice[0]}'" if twice else "the header has no name",
            code="invalid-csv-header",
            remedy="name every column in the first line, each differently; if that line is a row, set header: false",
            where=f"{path}:{line}",
        )
    return names


_OLD_MAC_LINE_END = re.compile(r"\r(?!\n)")


def rows_of_text(path: Path, encoding: Encoding = "auto") -> Iterator[RawRow]:
    """One row per line, for the line ends LF, CRLF and CR; blank lines are skipped."""
    source = SourceFile(path)
    lines = chain.from_iterable(_OLD_MAC_LINE_END.split(line) for _, line in read_lines(path, encoding))
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield RawRow({"text": line.rstrip("\r\n")}, source, number)


def rows_of_markdown(path: Path, encoding: Encoding = "auto") -> Iterator[RawRow]:
    """The whole file as one row."""
    if (text := read_text(path, encoding)).strip():
        yield RawRow({"text": text}, SourceFile(path), 1)


_ROWS_OF_A_BATCH = 8
"""Rows in memory at a time. Each may have gigabytes, if all of them refer to one value in a small file; larger batches
are not faster."""
_LARGE_BATCH = 64 << 20
_MOST_VALUES, _MOST_TIMES = 1 << 27, 200
"""A Parquet file of more values than the first may have at most this many times its size in bytes."""
_ARROW_FILE = b"ARROW1"
"""Begin of Arrow's file format, which polars and Feather write; datasets writes the format of streams."""


class _NumberedSource(SourceFile):
    """A Parquet or Arrow file, which has no lines."""

    def place(self, number: int) -> str:
        return f"{self.path}, row {number}"


def rows_of_parquet(path: Path) -> Iterator[RawRow]:
    """All rows of a Parquet file, or of an Arrow file (.arrow), a stream or not; numbered from 1.

    A null inside a column is removed: a column has the keys of all rows, so null means that a row does not have the
    key. A tool call would otherwise have the arguments of all tools.

    Raises:
        DataError: the file is damaged or in another format.
        MachineError: pyarrow is not installed.
    """
    is_arrow = data_suffix(path) == ".arrow"
    kind = "Arrow" if is_arrow else "Parquet"
    try:
        import pyarrow
    except ImportError as error:
        raise MachineError(
            f"reading {kind} needs pyarrow",
            code="package-missing",
            remedy="pip install 'ascendtune[train]'",
            where=path,
        ) from error
    source, number = _NumberedSource(path), 0
    with opened(path) as file:
        try:
            for batch in _arrow_batches(file) if is_arrow else _parquet_batches(file, path):
                # Large rows are converted to Python's values one at a time.
                size = 1 if batch.nbytes > _LARGE_BATCH else max(1, batch.num_rows)
                for at in range(0, batch.num_rows, size):
                    for values in _values_of(batch.slice(at, size), source, number + 1):
                        number += 1
                        yield RawRow(values, source, number)
        # pyarrow raises OSError for a corrupt page, and UnicodeDecodeError for a column name that is not UTF-8.
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"the {kind} file is damaged: {str(error).splitlines()[0]}",
                code=f"{kind.lower()}-damaged",
                remedy="copy or download it again",
                where=path,
            ) from error


def _parquet_batches(file: IO[bytes], path: Path) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile

    parquet = ParquetFile(file)
    groups = map(parquet.metadata.row_group, range(parquet.num_row_groups))
    values = sum(group.column(at).num_values for group in groups for at in range(group.num_columns))
    if values > max(_MOST_VALUES, _MOST_TIMES * path.stat().st_size):
        # One row may contain them all.
        raise DataError(
            f"the Parquet file contains {values:,} values in {path.stat().st_size:,} bytes",
            code="parquet-too-large",
            remedy="check its content; write large data as JSON lines, one row per line",
            where=path,
        )
    yield from parquet.iter_batches(batch_size=_ROWS_OF_A_BATCH)


def _arrow_batches(file: IO[bytes]) -> Iterator[Any]:
    from pyarrow import ipc

    begin = file.read(len(_ARROW_FILE))
    file.seek(0)
    if begin == _ARROW_FILE:
        reader = ipc.open_file(file)
        batches = map(reader.get_batch, range(reader.num_record_batches))
    else:
        batches = iter(ipc.open_stream(file))
    for batch in batches:
        # pyarrow trusts offsets in Arrow files: wrong ones would be read as other memory, or crash.
        batch.validate(full=True)
        yield from (batch.slice(at, _ROWS_OF_A_BATCH) for at in range(0, batch.num_rows, _ROWS_OF_A_BATCH))


def _values_of(batch: Any, source: SourceFile, first: int) -> list[dict[str, Any]]:
    """The rows of a record batch, the first of which has the number `first`.

    Raises:
        DataError: a value that Python cannot represent, such as text that is not UTF-8, with its row and column.
    """
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    # pyarrow has no exception of its own for text that is not UTF-8, years beyond 9999 and duplicate column names.
    except (ValueError, OverflowError) as error:
        for index in range(batch.num_rows):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if fault := _fault_of(column[index]):
                    raise DataError(
                        f"the column '{name}' cannot be read: {fault}",
                        code="parquet-damaged",
                        remedy="correct this value or the column; text must be UTF-8",
                        where=source.place(first + index),
                    ) from error
        raise DataError(
            f"the rows cannot be read: {error}",
            code="parquet-damaged",
            remedy="write the file again",
            where=source.path,
        ) from error
    for name in [field.name for field in batch.schema if field.type.num_fields]:
        for row in rows:
            row[name] = _without_nulls(row[name])
    return rows


def _without_nulls(value: Any) -> Any:
    """`value` without keys whose value is null, also in nested objects."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _fault_of(value: Any) -> str | None:
    try:
        value.as_py()
    except (ValueError, OverflowError) as error:
        return str(error).splitlines()[0]
    return None
