"""Follows a file to which another process appends lines."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ascendtune.core.errors import MachineError
from ascendtune.core.files import open_regular
from ascendtune.core.terminal_text import decoded

_BLOCK_BYTES = 64 * 1024
_READ_BYTES = 1 << 20
_LONGEST_LINE = 1 << 20
"""Bytes. A longer line is split, since a program may write without end and without a newline."""


class Tail:
    """Continues where the last read ended, also after the file was truncated or replaced.

    Args:
        begin: the first byte to read; by default the end that the file has now.
    """

    def __init__(self, path: Path, begin: int | None = None) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._is_bar = False
        self._position = size_of(path) if begin is None else begin

    def lines(self) -> Iterator[str]:
        """Complete lines since the last call, without their newlines; a very long one in pieces.

        Lines that the caller does not take are kept for the next call: the file is read as fast as they are taken.
        """
        while self._lines or self._read_lines():
            while self._lines:
                yield _text(self._lines.popleft())

    def _read_lines(self) -> bool:
        """Read one block; False if the file has no more."""
        if self._file is None and not self._open():
            return False
        block = self._read()
        if not block and self._was_replaced() and self._open():
            self._position = 0
            block = self._read()
        *complete, rest = (self._rest + block).split(b"\n")
        # A progress bar may write for hours without a newline.
        self._rest = rest[_last_state(rest) :]
        self._is_bar = len(self._rest) < len(rest) or (self._is_bar and not complete)
        if len(self._rest) > _LONGEST_LINE:
            complete.append(self._rest)
            self._rest = b""
        self._lines.extend(complete)
        return bool(block)

    def bar(self) -> str:
        """The state of a progress bar, if the incomplete last line is one; otherwise empty."""
        return _text(self._rest) if self._is_bar else ""

    def rest(self) -> list[str]:
        """The incomplete last line, in a list; an empty list if there is none."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> bool:
        try:
            file = open_regular(self._path)
        except (OSError, MachineError):
            return False
        self.close()
        self._file = file
        return True

    def _read(self) -> bytes:
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._position:
            self._position, self._rest = 0, b""
        self._file.seek(self._position)
        block = self._file.read(_READ_BYTES)
        self._position += len(block)
        return block

    def _was_replaced(self) -> bool:
        assert self._file is not None
        try:
            current = self._path.stat()
        except OSError:
            return False
        return not os.path.samestat(current, os.fstat(self._file.fileno()))


def begin_of_last(path: Path, count: int, first: int = 0) -> int:
    """Byte offset of the last `count` lines of a file, at least `first`."""
    with suppress(OSError, MachineError), open_regular(path) as file:
        position = file.seek(0, os.SEEK_END)
        # The newline at the end completes the last line and begins none.
        counted = -1
        while position > first:
            size = min(_BLOCK_BYTES, position - first)
            position -= size
            file.seek(position)
            block = file.read(size)
            newlines = block.count(b"\n")
            if counted + newlines >= count:
                kept = block.split(b"\n", counted + newlines - count + 1)[-1]
                return position + size - len(kept)
            counted += newlines
    return first


def size_of(path: Path) -> int:
    """Size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last_state(line: bytes) -> int:
    """Index at which the last state of a progress bar begins, as a terminal shows it."""
    return line.rstrip(b"\r").rfind(b"\r") + 1


def _text(line: bytes) -> str:
    return decoded(line[_last_state(line) :].rstrip(b"\r"))
