"""Rows of JSON files: one array of objects, or one object a line."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import BadRow, RawRow, Source
from ascendtune.data.files import head, read_lines, read_text
from ascendtune.data.report import EXAMPLES_KEPT

_BETWEEN_ROWS = re.compile(r"[\s,]*")


def rows_of_json(path: Path) -> Iterator[RawRow]:
    """The rows of `path`; the first character tells an array from lines, whatever the suffix says.

    Raises:
        DataError: not JSON (line and column), not a list of objects.
    """
    start = head(path).removeprefix(b"\xef\xbb\xbf").lstrip()
    return _rows_of_array(path) if start.startswith(b"[") else _rows_of_lines(path)


class _ArraySource(Source):
    """Numbers are indices into the array; lines are found by reading the file once more, when first asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lines: array[int] | None = None

    def place(self, number: int) -> str:
        if self._lines is None:
            self._lines = _lines_of_rows(read_text(self.path))
        line = self._lines[number]
        # Of a file without line breaks the line says nothing.
        shared = line in self._lines[max(0, number - 1) : number] or line in self._lines[number + 1 : number + 2]
        return f"{self.path}:{line}, row {number + 1}" if shared else f"{self.path}:{line}"


def _lines_of_rows(text: str) -> array[int]:
    """The line on which each element of a JSON array begins."""
    decoder, lines = json.JSONDecoder(), array("Q")
    line, seen, position = 1, 0, text.index("[") + 1
    while True:
        between = _BETWEEN_ROWS.match(text, position)
        start = between.end() if between else position
        if text.startswith("]", start):
            return lines
        line += text.count("\n", seen, start)
        seen = start
        lines.append(line)
        _, position = decoder.raw_decode(text, start)


class _Decoder(json.JSONDecoder):
    """Detects a key that occurs twice in one object: which value counts is not defined."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=self._object_of)
        self._twice: str | None = None

    def _object_of(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            times = Counter(key for key, _ in pairs)
            self._twice = next(key for key, number in times.items() if number > 1)
        return made

    def fault(self) -> BadRow | None:
        """What was found since this was asked last."""
        twice, self._twice = self._twice, None
        return None if twice is None else BadRow("duplicate key", f"'{twice[:60]}'")


def _rows_of_array(path: Path) -> Iterator[RawRow]:
    decoder, text = _Decoder(), read_text(path)
    try:
        rows = decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(path, error) from error
    faults = _faults_of_rows(text) if decoder.fault() else {}
    source = _ArraySource(path)
    for index, values in enumerate(rows):
        if type(values) is not dict:
            raise _not_an_object(values, source.place(index))
        yield RawRow(values, source, index, faults.get(index))


def _faults_of_rows(text: str) -> dict[int, BadRow]:
    """The rows of an array that parses in which a key stands twice."""
    decoder, faults, position = _Decoder(), dict[int, BadRow](), text.index("[") + 1
    for index in count():
        between = _BETWEEN_ROWS.match(text, position)
        start = between.end() if between else position
        if text.startswith("]", start):
            break
        _, position = decoder.raw_decode(text, start)
        if fault := decoder.fault():
            faults[index] = fault
    return faults


def _rows_of_lines(path: Path) -> Iterator[RawRow]:
    source, decoder = Source(path), _Decoder()
    parse, fault = decoder.decode, decoder.fault
    lines = read_lines(path)
    for number, line in lines:
        try:
            values = parse(line)
        except (ValueError, RecursionError) as error:
            if line.isspace():
                continue
            raise _one_object(path, number) or _malformed(path, chain([(number, line)], lines)) from error
        if type(values) is not dict:
            raise _not_an_object(values, source.place(number))
        yield RawRow(values, source, number, fault())


def _not_json(path: Path, error: Exception) -> DataError:
    """An array that does not parse as a whole."""
    line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
    return DataError(_fault(error), code="invalid-json", remedy="correct or remove this row", where=f"{path}{line}")


def _malformed(path: Path, lines: Iterable[tuple[int, str]]) -> DataError:
    """The error for all remaining lines that do not parse, so that they can be corrected at once."""
    faults = []
    for number, line in lines:
        try:
            json.loads(line)
        except (ValueError, RecursionError) as error:
            if not line.isspace():
                faults.append((number, _fault(error, number, line)))
    (first, what), *others = faults
    if others:
        shown = [f"  line {number}: {fault}" for number, fault in faults[:EXAMPLES_KEPT]]
        more = [f"  and {len(faults) - EXAMPLES_KEPT:,} more"] if len(faults) > EXAMPLES_KEPT else []
        what = "\n".join([f"{len(faults):,} lines are not JSON", *shown, *more])
    return DataError(
        what,
        code="invalid-json",
        remedy=f"correct or remove {'these rows' if others else 'this row'}; "
        "data.on_bad_row: skip does not apply to invalid JSON",
        where=f"{path}:{first}",
    )


def _fault(error: Exception, number: int | None = None, line: str = "") -> str:
    """Args:
    number: of the `line` that alone was parsed; without it the error counts lines itself.
    """
    if not isinstance(error, json.JSONDecodeError):
        return "not readable JSON: " + ("nested too deeply" if isinstance(error, RecursionError) else str(error))
    # An error at the line's end is reported behind the last character.
    column = error.colno if number is None else min(error.pos, len(line.rstrip())) + 1
    return f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]} (line {number or error.lineno}, column {column})"


def _one_object(path: Path, failed_line: int) -> DataError | None:
    """The error for a file that is one object around the rows; None for a malformed line."""
    if failed_line != 1:
        return None
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return None
    lists = [key for key, value in content.items() if isinstance(value, list)] if isinstance(content, dict) else []
    remedy = (
        f"take the list out: jq '.{lists[0]}' '{path.name}' > rows.json"
        if lists
        else "write a list of objects, [{…}, {…}]"
    )
    return DataError(
        "the file holds one JSON object, not a list of rows", code="not-a-list-of-rows", remedy=remedy, where=path
    )


def _not_an_object(values: Any, place: str) -> DataError:
    return DataError(
        f"a row must be an object of column names and values; this one is {kind_of(values)}",
        code="row-not-an-object",
        remedy='write each row as {"column": "text", …}',
        where=place,
    )


def kind_of(value: Any) -> str:
    """A JSON value's kind, for messages: 'a list', 'null', …"""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
