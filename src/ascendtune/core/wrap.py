"""Lines that fit on a terminal. What goes into a pipe or a file keeps its lines: programs and `grep` read those."""

from __future__ import annotations

import os
import re
import textwrap
from contextlib import suppress
from typing import TextIO

_LABEL = re.compile(r" *(?:\[rank \d+\] )?[a-z]+: ")
_USUAL_COLUMNS = 80
_NARROWEST = 20
_HANGING = 2


def columns_of(stream: TextIO) -> int | None:
    """The width of the terminal that `stream` is, or None when it is none."""
    if not stream.isatty():
        return None
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return int(given)
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    return _USUAL_COLUMNS


def wrapped(text: str, columns: int | None, indent: int | None = None) -> str:
    """`text`, its long lines broken between words; a path or an option stays whole, to be copied.

    Args:
        columns: as `columns_of` says; None breaks nothing.
        indent: of what goes on (default: behind a label as in `warning: …`).

    A line `where: …` is one place, and never broken.
    """
    if columns is None:
        return text
    return "\n".join(_broken(line, columns, indent) for line in text.split("\n"))


def _broken(line: str, columns: int, indent: int | None) -> str:
    if len(line) <= columns or line.startswith("where: "):
        return line
    label = _LABEL.match(line)
    begin = indent if indent is not None else label.end() if label else 0
    return textwrap.fill(
        line[begin:],
        max(columns, begin + _NARROWEST),
        initial_indent=line[:begin],
        subsequent_indent=" " * (begin or _HANGING),
        break_long_words=False,
        break_on_hyphens=False,
    )
