"""A file of rows for tokenisation: memory use does not depend on their number.

The file is unnamed: it is deleted when the processes that have it open end. Forked processes can read it, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ascendtune.data.conversation import Conversation, PreferencePair, Row, SourceFile, Text, UnpairedPreference

Numbers = NDArray[np.int32]

_BLOCK = 256
"""Rows that are decoded together."""
_LARGEST_BLOCK = 4 << 20
"""Bytes; rows of larger blocks are decoded one by one."""
_BLOCKS_KEPT = 3
_ENTRY = struct.Struct("<QQI")
"""Record of a row: end of its text, its number in its source, and the source's index."""


class RowFile:
    """Rows of one kind, appended and then read, each with its file and its number there."""

    def __init__(self, directory: Path | None = None) -> None:
        """
        Args:
            directory: directory of the file; default is that of temporary files.
        """
        self._text = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  # It lives as long as this object.
        self._index = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        self._rows = 0
        self._end = 0
        self._sources: list[SourceFile] = []
        self._make: Callable[[Any], Row] = _conversation
        self._not_json: dict[int, Row] = {}
        self._blocks: dict[int, list[Row]] = {}

    def __len__(self) -> int:
        return self._rows

    def append(self, row: Row, source: SourceFile, number: int) -> None:
        """Add a row that `source` calls `number`."""
        values, self._make = _as_json(row)
        try:
            text = _encode(values).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError):
            # Parquet may also contain dates and bytes.
            text = b"null"
            self._not_json[self._rows] = row
        if not self._sources or self._sources[-1] is not source:
            self._sources.append(source)
        self._end += len(text) + 1
        self._text.write(text + b",")
        self._index.write(_ENTRY.pack(self._end, number, len(self._sources) - 1))
        self._rows += 1

    def complete(self) -> None:
        """End writing; from now on rows can be read."""
        self._text.flush()
        self._index.flush()

    def close(self) -> None:
        """Release the disk space."""
        for file in (self._text, self._index):
            # Data that could not be written on a full disk are not needed.
            with suppress(OSError):
                file.close()

    def row(self, number: int) -> Row:
        """One row; adjacent rows are decoded with it."""
        block, within = divmod(number, _BLOCK)
        if (rows := self._blocks.get(block)) is not None:
            return rows[within]
        first = block * _BLOCK
        ends = [end for end, _, _ in self._entries(first, min(first + _BLOCK, self._rows))]
        begin = self._entries(first - 1, first)[0][0] if first else 0
        if ends[-1] - begin > _LARGEST_BLOCK:
            return self._decoded(number, ends[within - 1] if within else begin, ends[within])[0]
        rows = self._decoded(first, begin, ends[-1])
        if len(self._blocks) == _BLOCKS_KEPT:
            del self._blocks[next(iter(self._blocks))]
        self._blocks[block] = rows
        return rows[within]

    def digests(self) -> NDArray[np.uint64]:
        """(rows,) uint64 hash of each row's content, by number in the file."""
        found, begin = np.empty(self._rows, np.uint64), 0
        for first in range(0, self._rows, _BLOCK):
            for number, (end, _, _) in enumerate(self._entries(first, min(first + _BLOCK, self._rows)), first):
                row = self._not_json.get(number)
                text = self._read(begin, end) if row is None else repr(row).encode(errors="replace")
                found[number] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
                begin = end
        return found

    def place(self, number: int) -> str:
        """`file:line` of a row."""
        ((_, in_source, source),) = self._entries(number, number + 1)
        return self._sources[source].place(in_source)

    def _entries(self, begin: int, end: int) -> list[tuple[int, int, int]]:
        size = _ENTRY.size
        return list(_ENTRY.iter_unpack(os.pread(self._index.fileno(), (end - begin) * size, begin * size)))

    def _decoded(self, first: int, begin: int, end: int) -> list[Row]:
        """The rows from number `first` on whose texts are the bytes from `begin` to `end`."""
        values = enumerate(json.loads(b"[" + self._read(begin, end)[:-1] + b"]"), first)
        return [self._make(each) if each is not None else self._not_json[number] for number, each in values]

    def _read(self, begin: int, end: int) -> bytearray:
        pieces = bytearray()
        while len(pieces) < end - begin:
            # One call reads at most two gigabytes.
            piece = os.pread(self._text.fileno(), end - begin - len(pieces), begin + len(pieces))
            if not piece:
                raise EOFError("the file with rows became shorter while it was read")
            pieces += piece
        return pieces


_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def _as_json(row: Row) -> tuple[Any, Callable[[Any], Row]]:
    """`row` as lists and texts, and the function that restores it from them."""
    match row:
        case Conversation():
            return (row.messages, row.tools, row.options), _conversation
        case Text():
            return row.text, Text
        case PreferencePair():
            return (*_as_json(row.chosen)[0], *_as_json(row.rejected)[0], row.margin), _pair
        case UnpairedPreference():
            return (*_as_json(row.conversation)[0], row.desirable), _single


def _conversation(values: Any) -> Conversation:
    return Conversation(*values)


def _pair(values: Any) -> PreferencePair:
    return PreferencePair(Conversation(*values[:3]), Conversation(*values[3:6]), values[6])


def _single(values: Any) -> UnpairedPreference:
    return UnpairedPreference(Conversation(*values[:3]), values[3])


class Rows(Sequence[Any]):
    """Rows of a file in a given order, in which a row may occur several times."""

    def __init__(self, file: RowFile, order: Numbers | None = None) -> None:
        """
        Args:
            order: (rows,) int32 numbers in the file; default is all rows, as they were appended.
        """
        self._file = file
        self._order = order

    @property
    def numbers(self) -> Numbers:
        """(rows,) int32: number in the file; the same for copies of a row."""
        return np.arange(len(self._file), dtype=np.int32) if self._order is None else self._order

    def without_copies(self) -> Numbers:
        """(rows,) int32: per row the index of its first copy, ascending."""
        if self._order is None:
            return self.numbers
        return np.sort(np.unique(self._order, return_index=True)[1]).astype(np.int32)

    def digests(self) -> NDArray[np.uint64]:
        """(rows,) uint64 hash of each row of the file, by its number there."""
        return self._file.digests()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def taken(self, indices: Numbers) -> Rows:
        """The rows at `indices`, (rows,) integers, in that order."""
        return Rows(self._file, indices if self._order is None else self._order[indices])

    def place(self, index: int) -> str:
        """`file:line` of the row at `index`."""
        return self._file.place(self._number(index))

    def __len__(self) -> int:
        return len(self._file) if self._order is None else len(self._order)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return self._file.row(self._number(index))

    def _number(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return index if self._order is None else int(self._order[index])


class RowPlaces:
    """`file:line` of each of `rows`; looked up only for messages."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> str:
        return self._rows.place(index)
