"""Rows of JSON files: one array of objects, or one object per line."""

from __future__ import annotations

import json
import re
import shlex
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from ascendtune.core.errors import DataError
from ascendtune.core.units import count_of
from ascendtune.data.conversation import BadRow, RawRow, SourceFile
from ascendtune.data.encoding import Encoding
from ascendtune.data.files import head, read_lines, read_pieces, read_text
from ascendtune.data.report import EXAMPLES_KEPT

_WHITE_SPACE = re.compile(r"[ \t\n\r]*")
_MOST_OBJECTS = 20
"""Most columns of a row that may all be objects; a first line with more is a file of rows by name."""
_LONGEST_WORD = 16
"""Characters: more than the missing end of a number, a name like `-Infinity` or an escape."""


def rows_of_json(path: Path, encoding: Encoding = "auto") -> Iterator[RawRow]:
    """The rows of `path`; the first character distinguishes an array from lines, whatever the suffix is.

    Raises:
        DataError: not JSON (line and column), not a list of objects.
    """
    start = head(path, encoding=encoding).removeprefix(b"\xef\xbb\xbf").lstrip()
    return _rows_of_array(path, encoding) if start.startswith(b"[") else _rows_of_lines(path, encoding)


class _ArraySource(SourceFile):
    """Numbers are indices into the array; lines are found by a second reading of the file, as far as needed."""

    def __init__(self, path: Path, encoding: Encoding) -> None:
        super().__init__(path)
        elements = _Elements(path, json.JSONDecoder(), encoding)
        self._remaining_lines = (elements.line() for _ in elements)
        self._lines = array("Q")

    def place(self, number: int) -> str:
        while len(self._lines) < number + 2 and (line := next(self._remaining_lines, None)):
            self._lines.append(line)
        line = self._lines[number]
        # In a file without line breaks the line does not identify the row.
        shared = line in self._lines[max(0, number - 1) : number] or line in self._lines[number + 1 : number + 2]
        return f"{self.path}:{line}, row {number + 1}" if shared else f"{self.path}:{line}"


class _Decoder(json.JSONDecoder):
    """Detects a key that occurs twice in one object: which value counts is not defined."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=self._object_of)
        self._twice: str | None = None

    def _object_of(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            times = Counter(key for key, _ in pairs)
            self._twice = next(key for key, number in times.items() if number > 1)
        return values

    def fault(self) -> BadRow | None:
        """The fault since the last call, or None."""
        twice, self._twice = self._twice, None
        return None if twice is None else BadRow("duplicate key", f"'{twice[:60]}'")


def _rows_of_array(path: Path, encoding: Encoding) -> Iterator[RawRow]:
    decoder, source = _Decoder(), _ArraySource(path, encoding)
    for index, values in enumerate(_Elements(path, decoder, encoding)):
        if type(values) is not dict:
            raise _not_an_object(values, source.place(index))
        yield RawRow(values, source, index, decoder.fault())


class _Elements:
    """The elements of a JSON array, in order; only a part of the text is in memory."""

    def __init__(self, path: Path, decoder: json.JSONDecoder, encoding: Encoding) -> None:
        self._path = path
        self._decoder = decoder
        self._pieces = read_pieces(path, encoding)
        self._text, self._at = "", 0
        # Line breaks before `_counted`, and characters between the last one and the text in memory.
        self._breaks = self._counted = self._before = 0

    def __iter__(self) -> Iterator[Any]:
        """
        Raises:
            DataError: not JSON; raised after the elements before the fault.
        """
        if self._next_character() != "[":
            raise self._malformed("Expecting value")
        self._at += 1
        if self._next_character() != "]":
            while True:
                value, end = self._element()
                yield value
                self._at = end
                if self._next_character() != ",":
                    break
                self._at += 1
                self._next_character()
            if self._next_character() != "]":
                raise self._malformed("Expecting ',' delimiter")
        self._at += 1
        if self._next_character():
            raise self._malformed("Extra data")

    def line(self) -> int:
        """The line, from 1, on which the last returned element begins."""
        self._breaks += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._breaks + 1

    def _element(self) -> tuple[Any, int]:
        """The element at the current position, and its end."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                size = end - self._at
                # A number may continue after the text in memory.
                may_be_cut = type(value) in (int, float) and end > len(self._text) - _LONGEST_WORD
                if not (may_be_cut and self._read_more()):
                    return value, self._at + size
            except json.JSONDecodeError as error:
                into_element = error.pos - self._at
                if not (self._may_be_cut(error) and self._read_more()):
                    self._at += into_element
                    raise self._malformed(error.msg) from error
            except (ValueError, RecursionError) as error:
                raise _not_json(f"{self._path}:{self.line()}", _fault(error)) from error

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Whether the end of the text in memory may be the cause of `error`, which for a string refers to its
        beginning."""
        return error.msg.startswith("Unterminated string") or error.pos > len(self._text) - _LONGEST_WORD

    def _next_character(self) -> str:
        """The first character after white space, which is skipped; "" at the end of the file."""
        while True:
            space = _WHITE_SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or not self._read_more():
                return self._text[self._at : self._at + 1]

    def _read_more(self) -> bool:
        """Read at least as much as is left in memory; False at the end of the file."""
        self._before = self._column() - 1
        self.line()
        kept = [self._text[self._at :]]
        least = max(1, len(kept[0]))
        self._text, self._at, self._counted = "", 0, 0
        for piece in self._pieces:
            kept.append(piece)
            least -= len(piece)
            if least <= 0:
                break
        self._text = "".join(kept)
        return len(kept) > 1

    def _column(self) -> int:
        """The column of the current position, from 1."""
        behind_break = self._text.rfind("\n", 0, self._at) + 1
        return self._at - behind_break + 1 + (0 if behind_break else self._before)

    def _malformed(self, message: str) -> DataError:
        line = self.line()
        return _not_json(f"{self._path}:{line}", _described(message, line, self._column()))


def _rows_of_lines(path: Path, encoding: Encoding) -> Iterator[RawRow]:
    source, decoder = SourceFile(path), _Decoder()
    parse, fault = decoder.decode, decoder.fault
    lines = read_lines(path, encoding)
    for number, line in lines:
        try:
            values = parse(line)
        except (ValueError, RecursionError) as error:
            if line.isspace():
                continue
            raise _one_object(path, number, encoding) or _malformed(path, chain([(number, line)], lines)) from error
        if type(values) is not dict:
            raise _not_an_object(values, source.place(number))
        if number == 1 and len(values) > _MOST_OBJECTS and all(type(value) is dict for value in values.values()):
            raise _one_object(path, number, encoding) or _not_an_object(values, source.place(number))
        yield RawRow(values, source, number, fault())


def _not_json(place: str, fault: str) -> DataError:
    """The error for an array that does not parse."""
    return DataError(fault, code="invalid-json", remedy="correct or remove this row", where=place)


def _malformed(path: Path, lines: Iterable[tuple[int, str]]) -> DataError:
    """The error for all remaining lines that do not parse, so that they can be corrected together."""
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
        what = "\n".join([f"{count_of(len(faults), 'line is', 'lines are')} not JSON", *shown, *more])
    return DataError(
        what,
        code="invalid-json",
        remedy=f"correct or remove {'these rows' if others else 'this row'}; "
        "data.on_bad_row: skip does not apply to invalid JSON",
        where=f"{path}:{first}",
    )


def _fault(error: Exception, number: int = 0, line: str = "") -> str:
    """Args:
    number: of the `line` that was parsed.
    """
    if not isinstance(error, json.JSONDecodeError):
        return "not readable JSON: " + ("nested too deeply" if isinstance(error, RecursionError) else str(error))
    # An error at the line's end is reported after its last character.
    return _described(error.msg, number, min(error.pos, len(line.rstrip())) + 1)


def _described(message: str, line: int, column: int) -> str:
    return f"not valid JSON: {message[:1].lower()}{message[1:]} (line {line}, column {column})"


def _one_object(path: Path, failed_line: int, encoding: Encoding) -> DataError | None:
    """The error for a file that is one object around the rows; None for a malformed line."""
    if failed_line != 1:
        return None
    try:
        content = json.loads(read_text(path, encoding))
    except (ValueError, RecursionError):
        return None
    if isinstance(content, dict) and content and all(isinstance(value, dict) for value in content.values()):
        return _not_a_list(path, f"extract its values: jq '[.[]]' {shlex.quote(path.name)} > rows.json")
    lists = [key for key, value in content.items() if isinstance(value, list)] if isinstance(content, dict) else []
    remedy = "write a list of objects, [{…}, {…}]"
    if lists:
        key = (
            lists[0] if re.fullmatch(r"[A-Za-z_]\w*", lists[0], re.ASCII) else json.dumps(lists[0], ensure_ascii=False)
        )
        remedy = f"take the list out: jq {shlex.quote('.' + key)} {shlex.quote(path.name)} > rows.json"
    return _not_a_list(path, remedy)


def _not_a_list(path: Path, remedy: str) -> DataError:
    return DataError(
        "the file contains one JSON object, not a list of rows", code="not-a-list-of-rows", remedy=remedy, where=path
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
