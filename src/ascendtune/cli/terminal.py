"""Colours, width and tables for the terminal behind a stream."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from ascendtune.core.terminal_text import columns_of, control, terminal_width

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}
_CODES = {**_COLOURS, "bold": "1", "dim": "2"}


def colour(text: str, name: str, stream: TextIO) -> str:
    """`text` in a colour, if `stream` is a terminal and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"{control(f'[{_CODES[name]}m', stream)}{text}{control('[0m', stream)}"


def paint(text: str, name: str) -> str:
    """`colour` for stdout."""
    return colour(text, name, sys.stdout)


def width(stream: TextIO) -> int | None:
    """Columns of the terminal that `stream` is, or None when it is none: what is piped is never cut."""
    return terminal_width(stream)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), spare: Sequence[str] = ()
) -> str:
    """Aligned columns, two spaces between them.

    Args:
        right: headers of right-aligned columns.
        spare: headers of columns that are dropped, in this order, until the others fit on the terminal, which are then
            never cut. Without `spare` the first column is shortened.
    """
    # A file name may hold a newline: its second half would pass for a line of its own.
    one_line = [[cell.replace("\n", "\\n") for cell in row] for row in rows]
    columns = list(zip(header, *one_line, strict=True))
    limit = width(sys.stdout)
    for name in spare:
        if limit is None or _columns_needed(columns) <= limit:
            break
        columns = [column for column in columns if column[0] != name]
    sizes = [max(map(columns_of, column)) for column in columns]
    if limit is not None and not spare:
        sizes[0] = max(8, sizes[0] - max(0, _columns_needed(columns) - limit))
    return "\n".join(
        "  ".join(
            _padded(_shortened(cell, size), size, is_right=name in right)
            for cell, size, (name, *_) in zip(line, sizes, columns, strict=True)
        ).rstrip()
        for line in zip(*columns, strict=True)
    )


def _columns_needed(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(columns_of, column)) for column in columns) + 2 * (len(columns) - 1)


def _padded(text: str, size: int, *, is_right: bool) -> str:
    blank = " " * (size - columns_of(text))
    return blank + text if is_right else text + blank


def _shortened(text: str, size: int) -> str:
    # The end of a path is more informative than its beginning.
    if columns_of(text) <= size:
        return text
    while columns_of(text) > size - 1:
        text = text[1:]
    return "…" + text
