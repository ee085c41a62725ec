"""The events of a trace in Chrome's format, read incrementally: a trace is often larger than memory.

The format is that of torch.profiler's `export_chrome_trace` and of torch_npu's `trace_view.json`: an object with a list
`traceEvents` beside other keys, or the list alone; compressed with gzip or not. Memory use is bounded, because traces
come from other people.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from ascendtune.core.errors import InputError
from ascendtune.core.foreign_json import open_foreign

_CHUNK = 8 << 20
_LARGEST_VALUE = 32 << 20
"""Maximum characters of an event, or of a value beside the events."""
MOST_BYTES = 16 << 30
"""Maximum size of a trace after decompression."""
_KEPT_CHARACTERS = 1 << 20
_BLANKS = " \t\r\n"
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_GZIP = b"\x1f\x8b"

Event = dict[str, Any]


class TraceFile:
    """A trace that can be iterated once.

    Attributes:
        values: the file's values beside the events, by key, as far as they have been read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        # Without json's wrapper, which takes as long as a small event. Raises StopIteration at the end of the text.
        self._scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
        self._text = ""
        self._position = 0
        self._is_at_end = False
        self._read_bytes = 0

    def events(self) -> Iterator[Event]:
        """The events, in the order of the file.

        Raises:
            InputError: the file is not a trace, is damaged, or exceeds a limit.
            RecipeError: the file is not a regular file, or cannot be read.
        """
        with open_foreign(self.path) as file:
            try:
                yield from self._events_of(_decompressed(file))
            except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
                raise self._damaged(f"it cannot be decompressed: {error}") from error

    def _events_of(self, file: BinaryIO) -> Iterator[Event]:
        self._file = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
        opening = self._next_character()
        if opening == "[":
            yield from self._list()
            return
        if opening != "{":
            raise self._damaged("it does not begin with an object or a list")
        while self._peek() != "}":
            key = self._value()
            if self._next_character() != ":" or not isinstance(key, str):
                raise self._damaged("a key is missing")
            if key == "traceEvents" and self._peek() == "[":
                self._next_character()
                yield from self._list()
            else:
                before = self._position
                value = self._value()
                if self._position - before <= _KEPT_CHARACTERS:
                    self.values[key] = value
            if self._peek() == ",":
                self._next_character()
            elif self._peek() != "}":
                raise self._damaged("the end of the file is missing")

    def _list(self) -> Iterator[Event]:
        scan, skip, text, position = self._scan, _BETWEEN.match, self._text, self._position
        while True:
            # The common case inline: an event that is completely in the buffer.
            position = skip(text, position).end()  # type: ignore[union-attr]  # it matches the empty text, too
            if text.startswith("{", position):
                try:
                    event, position = scan(text, position)
                except RecursionError as error:
                    raise self._damaged("it is nested too deeply") from error
                except (ValueError, StopIteration):
                    event = None
                if event is not None:
                    yield event
                    continue
            self._position = position
            if self._peek() == "]":
                self._next_character()
                return
            if self._is_at_end and self._position >= len(self._text):
                raise self._damaged("the end of the file is missing")
            event = self._value()
            text, position = self._text, self._position
            if isinstance(event, dict):
                yield event

    def _peek(self) -> str:
        while True:
            while self._position < len(self._text) and self._text[self._position] in _BLANKS:
                self._position += 1
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._fill():
                return ""

    def _next_character(self) -> str:
        character = self._peek()
        self._position += 1
        return character

    def _value(self) -> Any:
        """The JSON value at the position; reads on until it is complete."""
        while True:
            self._peek()
            try:
                value, end = self._scan(self._text, self._position)
                # A number at the end of the buffer may continue after it.
                if end < len(self._text) or not self._fill():
                    self._position = end
                    return value
            except RecursionError as error:
                raise self._damaged("it is nested too deeply") from error
            except (ValueError, StopIteration) as error:
                if not self._fill():
                    raise self._damaged("it is not JSON, or its end is missing") from error

    def _fill(self) -> bool:
        """Read a chunk; return False at the end of the file."""
        rest = self._text[self._position :]
        if len(rest) > _LARGEST_VALUE:
            raise self._damaged(f"a value is longer than {_LARGEST_VALUE >> 20} MiB, or is not JSON")
        chunk = self._file.read(_CHUNK)
        self._read_bytes += len(chunk)
        if self._read_bytes > MOST_BYTES:
            raise self._damaged(f"it is larger than {MOST_BYTES >> 30} GiB", remedy="record fewer steps")
        self._text, self._position = rest + chunk, 0
        self._is_at_end = not chunk
        return bool(chunk)

    def _damaged(
        self,
        reason: str,
        remedy: str = "give a trace that torch.profiler or torch_npu.profiler wrote; if it is cut off, record it again",
    ) -> InputError:
        return InputError(
            f"{self.path.name} cannot be read as a trace: {reason}",
            code="invalid-trace",
            remedy=remedy,
            where=self.path,
        )


def _decompressed(file: BinaryIO) -> BinaryIO:
    first = file.read(2)
    file.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if first == _GZIP else file
