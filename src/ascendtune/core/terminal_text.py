"""Text for a terminal: control characters from other sources are escaped, long lines are wrapped.

Logs, rows, recipes, names, messages of templates and libraries, other hosts and models contain arbitrary text. An
escape sequence in it may write to the clipboard, rename the window or hide a line; a direction override changes what
people read.
"""

from __future__ import annotations

import codecs
import io
import json
import locale
import os
import re
import sys
import textwrap
import unicodedata
from contextlib import suppress
from typing import Any, TextIO

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, overrides and isolates of direction
    "\u034f\u180e\u200b\u2060-\u2064\u206a-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"  # invisible
    "\u2028\u2029"  # a line break to some
    "\U000e0000-\U000e007f"  # tags: a second, invisible ASCII, in which rows and answers may hide sentences
    "\ud800-\udc7f\udd00-\udfff"  # halves of surrogate pairs; the rest of them are bytes of file names
    "]"
)
_BYTES = re.compile("[\udc80-\udcff]+")
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"
)
# Random: only this process can write a sequence that passes.
_OURS = f"\x1b{os.urandom(16).hex()}"
_PROGRESS_BAR = re.compile(r"\n*(?:\x1b\[A)+|\r")


def decoded(printed: bytes) -> str:
    """The output of a program, as text whose lines end with a newline.

    Tools such as git print UTF-8 whatever the locale; others print in its encoding, GB18030 on some Chinese hosts.
    """
    try:
        text = printed.decode()
    except UnicodeDecodeError:
        text = printed.decode(locale.getpreferredencoding(False), errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def safe(text: str) -> str:
    """`text` with every control character as JSON writes it, so that printed JSON stays JSON."""
    if text.isascii() and text.isprintable():
        return text
    if _BYTES.search(text):
        # Consecutive bytes of a file name may form a character that is not safe.
        text = _BYTES.sub(_joined, text)
    return _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    # Above U+FFFF two escapes, as in JSON; below, one form for all.
    return json.dumps(found[0])[1:-1] if found[0] > "\uffff" else f"\\u{ord(found[0]):04x}"


def plain(text: str) -> str:
    """`safe` for the terminal output of other programs: colours and cursor movements are removed."""
    if "\x1b" in text or not text.isascii():
        text = _SEQUENCE.sub("", text)
    return safe(text.replace("\r\n", "\n").replace("\r", "\n"))


def control(sequence: str, stream: TextIO) -> str:
    """An escape sequence of this program, in the form that `stream` does not escape.

    Args:
        sequence: the part after the escape character, as in "[1m".
    """
    return (_OURS if isinstance(stream, SafeStream) else "\x1b") + sequence


class SafeStream:
    """A text stream that writes only `safe` text and sequences made by `control`."""

    def __init__(self, stream: TextIO, *, has_progress_bars: bool = False) -> None:
        self.stream = stream
        self.has_written = False
        self._has_progress_bars = has_progress_bars

    def write(self, text: str) -> int:
        self.has_written = True
        begin = ""
        # Control characters of libraries' progress bars, written in separate calls.
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


_STAND_INS = {
    **dict(zip("▁▂▃▄▅▆▇█░▒▓▏▎▍▌▋▊▉", "_.:-=+*#.:=|||||||", strict=True)),
    **dict(zip("─│└├×·−–—≈µ", "-|`|x.---~u", strict=True)),
    **dict(zip("…→≤≥✂«»⏎", ("...", "->", "<=", ">=", "8<", "<<", ">>", "\\n"), strict=True)),
}
"""ASCII replacements for the other characters that ascendtune prints."""

_ESCAPED_BYTES = range(0xDC80, 0xDD00)
"""Python's escapes for bytes of file names that are not in the system's encoding."""

_HANDLER = "ascendtune.stand_in"


def make_streams_safe() -> None:
    """Replace closed streams by /dev/null, escape control characters, and replace characters that cannot be encoded.

    Characters without an ASCII replacement become JSON's escapes, so that printed JSON stays JSON. Bytes of stdin that
    are not UTF-8 become lone surrogates, as on the command line. Must be called first: a file that is opened earlier
    could get the descriptor of a closed stream, and be written to.
    """
    codecs.register_error(_HANDLER, _escape_unencodable)
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _connect_to_nothing(descriptor)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, SafeStream):
            continue
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
        setattr(sys, name, SafeStream(stream, has_progress_bars=name == "stderr"))


def _connect_to_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing == descriptor:
        # Child processes inherit it open, too.
        os.set_inheritable(descriptor, True)
        return
    os.dup2(nothing, descriptor)
    os.close(nothing)


def _escape_unencodable(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character, end = error.object[error.start], error.start + 1
    if ord(character) in _ESCAPED_BYTES:
        # A byte of a file name that is not valid text: written as it is on the disk.
        return bytes([ord(character) - _ESCAPED_BYTES.start + 0x80]), end
    return _STAND_INS.get(character) or json.dumps(character)[1:-1], end


_LABEL = re.compile(r" *(?:\[rank \d+\] )?[a-z]+: ")
USUAL_COLUMNS = 80
_NARROWEST = 20
_HANGING = 2
_WIDE = "\u3000-\u303f\u3400-\u9fff\uff00-\uff60"
_NOT_FIRST = "，。；：、！？）」』】》"
"""Punctuation that stays with the character before it."""
_PIECE = re.compile(rf"[{_WIDE}][{_NOT_FIRST}]*\s?|[^\s{_WIDE}]+[{_NOT_FIRST}]*\s?")


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal `stream`, or None if it is not a terminal."""
    if not stream.isatty():
        return None
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return int(given)
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or USUAL_COLUMNS
    return USUAL_COLUMNS


def wrapped(text: str, columns: int | None, indent: int | None = None) -> str:
    """`text` with long lines broken between words; a path or an option is not broken, so it can be copied.

    Args:
        columns: from `terminal_width`; None breaks no lines.
        indent: of continuation lines (default: behind a label as in `warning: …`).

    A line `where: …` is one path, and never broken.
    """
    if columns is None:
        return text
    return "\n".join(_broken(line, columns, indent) for line in text.split("\n"))


def _broken(line: str, columns: int, indent: int | None) -> str:
    if columns_of(line) <= columns or line.startswith("where: "):
        return line
    label = _LABEL.match(line)
    begin = indent if indent is not None else label.end() if label else 0
    rest = " " * (begin or _HANGING)
    return "\n".join(wrap_words(line[begin:], max(columns, begin + _NARROWEST), line[:begin], rest))


def wrap_words(text: str, columns: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `columns` columns, broken at blanks and between Chinese characters, which take two columns each.

    Args:
        first: prefix of the first line, included in its width.
        rest: the same for the other lines.
    """
    if (first + text).isascii() or not any(map(_is_wide, first + text)):
        return textwrap.wrap(
            text,
            columns,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
    lines, line = [], first
    for piece in _PIECE.findall(" ".join(text.split())):
        if columns_of(line + piece.rstrip()) > columns and line.strip() and line not in (first, rest):
            lines.append(line.rstrip())
            line = rest
        line += piece
    return [*lines, line.rstrip()]


def columns_of(text: str) -> int:
    """Columns that `text` takes on a terminal."""
    return len(text) if text.isascii() else len(text) + sum(map(_is_wide, text))


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"
