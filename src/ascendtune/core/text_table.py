"""Aligned columns of text; Chinese characters take two columns of a terminal each."""

from __future__ import annotations

from collections.abc import Sequence

from ascendtune.core.terminal_text import columns_of


def table_lines(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    limit: int | None,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> list[str]:
    """The header and the rows, two spaces between columns.

    Args:
        limit: columns of the terminal; None to cut nothing.
        right: headers of right-aligned columns.
        spare: headers of columns that are dropped, in this order, until the others fit; these are then never cut.
            Without `spare` the first column is shortened.
    """
    # A file name may contain a newline: its second half would look like a row.
    one_line = [[cell.replace("\n", "\\n") for cell in row] for row in rows]
    columns = list(zip(header, *one_line, strict=True))
    for name in spare:
        if limit is None or _columns_needed(columns) <= limit:
            break
        columns = [column for column in columns if column[0] != name]
    sizes = [max(map(columns_of, column)) for column in columns]
    if limit is not None and not spare:
        sizes[0] = max(8, sizes[0] - max(0, _columns_needed(columns) - limit))
    return [
        "  ".join(
            _padded(_shortened(cell, size), size, is_right=name in right)
            for cell, size, (name, *_) in zip(line, sizes, columns, strict=True)
        ).rstrip()
        for line in zip(*columns, strict=True)
    ]


def indented_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: int,
    *,
    right: Sequence[str],
    spare: Sequence[str] = (),
) -> list[str]:
    """`table_lines`, indented by two columns; lines that are still longer than `columns` are cut at their end."""
    lines = table_lines(header, rows, limit=columns - 2 if spare else None, right=right, spare=spare)
    return cut_lines(["  " + line for line in lines], columns)


def cut_lines(lines: Sequence[str], limit: int) -> list[str]:
    """Lines of at most `limit` columns; a cut end is shown as `…`."""
    lines_shown = []
    for line in lines:
        kept = line
        while columns_of(kept) > limit - (kept is not line):
            kept = kept[:-1]
        lines_shown.append(line if kept is line else kept + "…")
    return lines_shown


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
