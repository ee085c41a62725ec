"""The tables that npu-smi draws: lines to cells, header cells to columns, cells to values.

Positions of characters are not used. A cell is the text between two borders; a cell that a cut or a wrapped line left
open is dropped, because the rest of its last number may be a different number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Values = dict[str, str]
Header = tuple[tuple["Column", ...], ...]
"""The columns of each cell of a header line."""

# Header text -> our name. Taken from npu-smi's source for 910, 910B, A3 and 310P (github.com/hicann/driver), from the
# manual of the 950 there, and from transcripts of the drivers 20.2 to 26.1.
_COLUMNS = {
    "NPU ID": "npu",
    "NPU Util": "npu_utilization",
    "NPU": "npu",
    "Name": "name",
    "Health": "health",
    "Power": "power",
    "Temp": "temperature",
    "Hugepages-Usage": "hugepages",
    "Chip": "chip",
    "Phy-ID": "phy",
    "Device": "logical",
    "Bus-Id": "bus",
    "AICore": "aicore",
    "Memory-Usage": "memory",
    "HBM-Usage": "hbm",
    "Process id in container": "container_pid",
    "Process id": "pid",
    "Process name": "process",
    "Process memory": "process_memory",
}
_TEXT = {"name", "health", "process"}
"""Columns whose values may contain spaces."""

_KNOWN = "|".join(re.escape(name).replace(r"\ ", r"\s+") for name in sorted(_COLUMNS, key=len, reverse=True))
_WORD = re.compile(rf"(?P<known>(?:{_KNOWN}))(?:\((?P<unit>[^)]*)\))?(?=\s|$)|(?P<unknown>\S+)", re.IGNORECASE)
_OUR_NAME = {"".join(name.lower().split()): ours for name, ours in _COLUMNS.items()}
_TOKEN = re.compile(r"[^\s/]+\s*/\s*[^\s/]+|[^\s/]+|/")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BORDERS = str.maketrans({"│": "|", "┃": "|", "｜": "|"})


class Column(NamedTuple):
    """`name` is ours, or None for an unknown column; `unit` as written: W, C, %, MB, page."""

    name: str | None
    unit: str = ""


class TableRow(NamedTuple):
    """The closed cells of a line. `cut`: text follows the last border, so that cells may be missing at the end."""

    cells: tuple[str, ...]
    cut: bool


def clean(line: str) -> str:
    """`line` without colours, and with one kind of border."""
    return _ESCAPE.sub("", line).translate(_BORDERS)


def is_border(line: str) -> bool:
    """Whether a line is a drawn one: +-----+====+, also after a prefix or with a damaged character."""
    drawn = sum(line.count(character) for character in "+-=")
    return drawn > 3 and drawn > 0.6 * len(line.strip())


def is_elision(line: str) -> bool:
    """Whether a line indicates that somebody left out lines."""
    return line.strip().strip("|").strip() in ("...", "…", "......")


def read_row(line: str) -> TableRow | None:
    """The cells of a line, or None if it has none."""
    parts = line.split("|")
    if len(parts) < 3:
        return None
    return TableRow(tuple(part.strip() for part in parts[1:-1]), cut=bool(parts[-1].strip()))


def read_header(row: TableRow) -> Header | None:
    """The columns of a header line, or None for other lines: at least two known names, and no numbers."""
    cells = tuple(_columns(cell) for cell in row.cells)
    known = [column for cell in cells for column in cell if column.name]
    if len(known) < 2 or any(re.search(r"(?:^|\s)[0-9]", cell) for cell in row.cells):
        return None
    return cells


def names(header: Header) -> set[str]:
    """The names of the known columns of a header."""
    return {column.name for cell in header for column in cell if column.name}


def read_values(row: TableRow, header: Header) -> Values | None:
    """Column name -> text; columns whose value cannot be determined are absent.

    None if the row does not belong to the header: it has other cells, and not because it was cut off.
    """
    if len(row.cells) > len(header) or (len(row.cells) < len(header) and not row.cut):
        return None
    values: Values = {}
    for cell, columns in zip(row.cells, header, strict=False):
        values.update(_cell_values(cell, columns))
    return values


def unit(header: Header, name: str) -> str:
    """The unit of a column as written in the header."""
    return next((column.unit for cell in header for column in cell if column.name == name), "")


def _columns(cell: str) -> tuple[Column, ...]:
    found: list[Column] = []
    end = 0
    for word in _WORD.finditer(cell):
        if known := word["known"]:
            found.append(Column(_OUR_NAME["".join(known.lower().split())], (word["unit"] or "").strip()))
        elif not (found and found[-1].name is None and word.start() - end == 1):
            # Words of an unknown name are separated by one space, names by two.
            found.append(Column(None))
        end = word.end()
    return tuple(found)


def _cell_values(cell: str, columns: tuple[Column, ...]) -> Values:
    tokens = [" ".join(token.split()) for token in _TOKEN.findall(re.sub(r"\bN/A\b", "NA", cell))]
    if not tokens or not columns or ("\ufffd" in cell and len(columns) > 1):
        # A lost character may have separated two values, or joined them.
        return {}
    if (surplus := len(tokens) - len(columns)) > 0:
        places = [place for place, column in enumerate(columns) if column.name in _TEXT]
        if len(places) == 1:
            first, last = places[0], places[0] + surplus + 1
            tokens[first:last] = [" ".join(tokens[first:last])]
    if len(tokens) != len(columns):
        return {}
    return {column.name: token for column, token in zip(columns, tokens, strict=True) if column.name}
