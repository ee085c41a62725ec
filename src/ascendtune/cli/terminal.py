"""What the far end of a stream can show: colours, width; and tables that fit."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}
_CODES = {**_COLOURS, "bold": "1", "dim": "2"}


def colour(text: str, name: str, stream: TextIO) -> str:
    """`text` in a colour, where `stream` is a terminal and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"\x1b[{_CODES[name]}m{text}\x1b[0m"


def width(stream: TextIO) -> int | None:
    """Columns of the terminal that `stream` is, or None when it is none: what is piped is never cut."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Aligned columns, two spaces between them; the first column gives way when the terminal is too narrow.

    Args:
        right: headers of the columns that hold numbers.
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    if limit := width(sys.stdout):
        surplus = sum(widths) + 2 * (len(widths) - 1) - limit
        widths[0] = max(8, widths[0] - max(0, surplus))
    return "\n".join(
        "  ".join(
            _shortened(cell, size).rjust(size) if name in right else _shortened(cell, size).ljust(size)
            for cell, size, name in zip(line, widths, header, strict=True)
        ).rstrip()
        for line in lines
    )


def _shortened(text: str, size: int) -> str:
    # The end of a path says more than its beginning.
    return text if len(text) <= size else "…" + text[len(text) - size + 1 :]
