"""Two texts beside each other on a terminal, such as the chosen and the rejected answer of a pair."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from ascendtune.core.terminal_text import columns_of, safe

if TYPE_CHECKING:
    from ascendtune.data.inspect import Segment

    Mark = Callable[[Segment], str]
    Text = tuple[str, Sequence[Segment]]
    """Title and segments."""
    _Line = tuple[Segment, ...]

_BETWEEN = " │ "
_NARROWEST_COLUMN = 24
_TAB = 4
# A word with the blanks after it, or a line's end.
_PIECE = re.compile(r"\n|[^\S\n]+|[^\s]+[^\S\n]*")


def fits_beside(columns: int | None) -> bool:
    """Whether two texts fit beside each other into `columns`, the width of the terminal; None: output is piped."""
    return columns is not None and columns >= 2 * _NARROWEST_COLUMN + len(_BETWEEN)


def beside(left: Text, right: Text, columns: int, mark: Mark, visible: Mark) -> Iterator[str]:
    """Lines of at most `columns` columns with both texts, each under its title.

    Args:
        mark: returns a segment, or a part of one that does not extend over a line's end, with its colour or marks.
        visible: the visible part of that: without the colour.
    """
    each = (columns - len(_BETWEEN)) // 2
    pair = [_column(*text, each, visible) for text in (left, right)]
    for one, other in zip_longest(*pair, fillvalue=()):
        space = " " * (each - _columns(one, visible))
        yield f"{''.join(map(mark, one))}{space}{_BETWEEN}{''.join(map(mark, other))}".rstrip()


def _column(title: str, segments: Sequence[Segment], columns: int, visible: Mark) -> list[_Line]:
    unmarked = replace(segments[0], is_trained=False, is_cut=False)
    heading, rule = replace(unmarked, text=title), replace(unmarked, text="─" * columns)
    return [*_wrapped([heading], columns, visible), (rule,), *_wrapped(segments, columns, visible)]


def _wrapped(segments: Sequence[Segment], columns: int, visible: Mark) -> Iterator[_Line]:
    """The text as lines of at most `columns` columns, broken at blanks if there are any."""
    line: _Line = ()
    for segment in segments:
        for piece in _PIECE.findall(safe(segment.text).expandtabs(_TAB)):
            if piece == "\n":
                yield _without_blanks_at_the_end(line)
                line = ()
                continue
            rest = replace(segment, text=piece)
            if line and _columns(_without_blanks_at_the_end(_joined(line, rest)), visible) > columns:
                yield _without_blanks_at_the_end(line)
                line = ()
            while _columns(_without_blanks_at_the_end((rest,)), visible) > columns:
                # A word, or a text without blanks, that is wider than the column.
                size = _fitting(rest, columns, visible)
                yield (replace(rest, text=rest.text[:size]),)
                rest = replace(rest, text=rest.text[size:])
            line = _joined(line, rest)
    if line:
        yield _without_blanks_at_the_end(line)


def _fitting(segment: Segment, columns: int, visible: Mark) -> int:
    """Number of characters of a segment that fit into `columns` columns, at least one."""
    size = min(len(segment.text) - 1, columns)
    while size > 1 and _columns((replace(segment, text=segment.text[:size]),), visible) > columns:
        size -= 1
    return size


def _joined(line: _Line, piece: Segment) -> _Line:
    if line and (line[-1].is_trained, line[-1].is_cut) == (piece.is_trained, piece.is_cut):
        return (*line[:-1], replace(piece, text=line[-1].text + piece.text))
    return (*line, piece)


def _without_blanks_at_the_end(line: _Line) -> _Line:
    if not line:
        return line
    last = line[-1].text.rstrip(" ")
    return (*line[:-1], replace(line[-1], text=last)) if last else _without_blanks_at_the_end(line[:-1])


def _columns(line: _Line, visible: Mark) -> int:
    return columns_of("".join(map(visible, line)))
