"""Pictures of letters: bandwidth over size as bars, and the links between ranks as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ascendtune.check.comm.sweep import GIGA, SLOW_SHARE, Link, Row
from ascendtune.check.table import WIDE, Paint
from ascendtune.core.units import format_bytes

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHADES = "░▒▓█"
_CELL, _LEFT = 7, 8
_FINE_SHARE = 0.8


def bars(rows: Sequence[Row], columns: int | None) -> str:
    """A line for each size; the longest bar is the highest busbw, and as long as the line allows."""
    labels = [format_bytes(row.bytes) for row in rows]
    figures = [f"{row.busbw_bytes_per_second / GIGA:.3f}" for row in rows]
    left, right = max(map(len, labels)), max(map(len, figures))
    room = (columns or WIDE) - left - right - 4
    highest = max(row.busbw_bytes_per_second for row in rows)
    drawn = [_bar(row.busbw_bytes_per_second / highest, room) for row in rows]
    lines = [
        f"{label.rjust(left)}  {figure.rjust(right)} {bar}".rstrip()
        for label, figure, bar in zip(labels, figures, drawn, strict=True)
    ]
    return "\n".join([f"{'size'.rjust(left)}  busbw, GB/s", *lines])


def heat_map(links: Sequence[Link], ranks: int, columns: int | None, paint: Paint) -> str:
    """GB/s from each rank (line) to each rank (column); shades where there is no room for figures.

    Colours tell how a link stands to the median link: red is slow, yellow behind, green as the others.
    """
    speeds = {(link.sender, link.receiver): link.bytes_per_second for link in links}
    usual, fastest = median(speeds.values()), max(speeds.values())
    has_room = _LEFT + ranks * _CELL <= (columns or WIDE)
    width = _CELL if has_room else len(str(ranks - 1)) + 1

    def cell(sender: int, receiver: int) -> str:
        speed = speeds.get((sender, receiver))
        if speed is None:
            return "-".rjust(width)
        text = _figure(speed / GIGA) if has_room else _SHADES[min(3, int(4 * speed / fastest))]
        return paint(text.rjust(width), _colour(speed / usual))

    everyone = range(ranks)
    legend = "GB/s, one direction" if has_room else f"{_SHADES}: quarters of the fastest, {fastest / GIGA:.3g} GB/s"
    return "\n".join(
        [
            "from\\to".ljust(_LEFT) + "".join(str(rank).rjust(width) for rank in everyone),
            *(str(rank).ljust(_LEFT) + "".join(cell(rank, other) for other in everyone) for rank in everyone),
            legend,
        ]
    )


def _figure(speed: float) -> str:
    return f"{speed:.3g}" if speed >= 1 else f"{speed:.3f}"


def _colour(share: float) -> str:
    return "red" if share < SLOW_SHARE else "yellow" if share < _FINE_SHARE else "green"


def _bar(share: float, room: int) -> str:
    eighths = round(share * room * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
