"""Text that came from outside, made harmless for a terminal: the one place where control characters are removed.

Logs, rows, recipes, names, messages of templates and of libraries, other hosts and models all write what they like. An
escape sequence among it may write the clipboard, rename the window or hide a line; an override of direction shows
another text than the one that stands there.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, TextIO

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, overrides and isolates of direction
    "\u200b\u2028\u2029\u2060\ufeff"  # invisible, or a line break to some
    "\ud800-\udc7f\udd00-\udfff"  # halves of surrogate pairs; the rest of them are bytes of file names
    "]"
)
_BYTES = re.compile("[\udc80-\udcff]+")
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"
)
# Nobody else knows it, so nobody else can write a sequence that passes.
_OURS = f"\x1b{secrets.token_hex(16)}"
_PROGRESS_BAR = re.compile(r"\n*(?:\x1b\[A)+|\r")


def safe(text: str) -> str:
    """`text` with every control character as JSON writes it, so that printed JSON stays JSON."""
    if text.isascii() and text.isprintable():
        return text
    if _BYTES.search(text):
        # Bytes of a file name may together be a character that is not safe.
        text = _BYTES.sub(_joined, text)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plain(text: str) -> str:
    """`safe` for what programs have written to a terminal of theirs: colours and cursor movements are left out."""
    if "\x1b" in text or not text.isascii():
        text = _SEQUENCE.sub("", text)
    return safe(text.replace("\r\n", "\n").replace("\r", "\n"))


def control(sequence: str, stream: TextIO) -> str:
    """An escape sequence of our own, as `stream` lets it pass.

    Args:
        sequence: what stands behind the escape character, as in "[1m".
    """
    return (_OURS if isinstance(stream, SafeStream) else "\x1b") + sequence


class SafeStream:
    """A text stream to which nothing is written but what `safe` leaves, and sequences made by `control`."""

    def __init__(self, stream: TextIO, *, has_progress_bars: bool = False) -> None:
        self.stream = stream
        self._has_progress_bars = has_progress_bars

    def write(self, text: str) -> int:
        begin = ""
        # What libraries draw their bars with, in calls of its own.
        if (
            self._has_progress_bars
            and (bar := _PROGRESS_BAR.match(text))
            and (bar[0] == "\r" or bar.end() == len(text))
        ):
            begin, text = bar[0], text[bar.end() :]
        pieces = [safe(piece) for piece in text.split(_OURS)]
        self.stream.write(begin + "\x1b".join(pieces))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _joined(found: re.Match[str]) -> str:
    return found[0].encode(errors="surrogateescape").decode(errors="surrogateescape")
