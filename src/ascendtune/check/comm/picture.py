"""The heat map of links as text, and as PNG; bandwidth over size as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from ascendtune.check.comm.sweep import GIGA, SLOW_SHARE, BandwidthRow, Link
from ascendtune.check.table import WIDE, Paint
from ascendtune.core.figure import import_matplotlib, write_figure
from ascendtune.core.units import format_bytes

_SHADES = "░▒▓█"
_CELL, _LEFT = 7, 8
_FINE_SHARE = 0.8


def heat_map(links: Sequence[Link], ranks: int, columns: int | None, paint: Paint) -> str:
    """GB/s from each rank (line) to each rank (column); shades if the terminal is too narrow for numbers.

    Colours compare a link with the median link: red below 50 %, yellow below 80 %, green otherwise.
    """
    speeds = {(link.sender, link.receiver): link.bytes_per_second for link in links}
    usual, fastest = median(speeds.values()), max(speeds.values())
    has_room = _LEFT + ranks * _CELL <= (columns or WIDE)
    width = _CELL if has_room else len(str(ranks - 1)) + 1

    def cell(sender: int, receiver: int) -> str:
        speed = speeds.get((sender, receiver))
        if speed is None:
            return "-".rjust(width)
        figure = speed / GIGA
        shown = f"{figure:.3g}" if figure >= 1 else f"{figure:.3f}"
        text = shown if has_room else _SHADES[min(3, int(4 * speed / fastest))]
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


def _colour(share: float) -> str:
    return "red" if share < SLOW_SHARE else "yellow" if share < _FINE_SHARE else "green"


_BUS, _ALGORITHM, _QUIET = "#1f4e8c", "#a9c1de", "#667085"


def draw_rows(path: Path, title: str, rows: Sequence[BandwidthRow]) -> None:
    """Write busbw and algbw over size to `path`.

    Raises:
        MachineError: matplotlib is not installed, or the file cannot be written.
    """
    figure = import_matplotlib().figure.Figure(figsize=(7.5, 4.5), layout="constrained")
    axis = figure.add_subplot()
    sizes = [row.bytes for row in rows]
    for name, colour in (("algbw", _ALGORITHM), ("busbw", _BUS)):
        speeds = [getattr(row, f"{name}_bytes_per_second") / GIGA for row in rows]
        axis.plot(sizes, speeds, color=colour, marker="o", markersize=3.5, linewidth=1.5, label=name)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda size, _: format_bytes(size).replace(".0 ", " "))
    axis.set_ylim(bottom=0)
    axis.set_ylabel("GB/s", color=_QUIET)
    axis.set_title(title, loc="left", fontsize=10)
    axis.grid(axis="y", color="#e4e7ec", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=_QUIET, which="both")
    axis.legend(frameon=False)
    write_figure(figure, path)


def draw_links(path: Path, title: str, links: Sequence[Link], ranks: int) -> None:
    """Write the heat map of links to `path`; see `draw_rows` for errors."""
    speeds = [[float("nan")] * ranks for _ in range(ranks)]
    for link in links:
        speeds[link.sender][link.receiver] = link.bytes_per_second / GIGA
    side = max(4.0, 0.55 * ranks)
    figure = import_matplotlib().figure.Figure(figsize=(side + 1.5, side), layout="constrained")
    axis = figure.add_subplot()
    image = axis.imshow(speeds, cmap="viridis", vmin=0)
    figure.colorbar(image, ax=axis, label="GB/s")
    for link in links:
        speed = link.bytes_per_second / GIGA
        ink = "white" if speed < 0.6 * image.norm.vmax else "black"
        axis.text(link.receiver, link.sender, f"{speed:.3g}", ha="center", va="center", color=ink, fontsize=8)
    axis.set_xticks(range(ranks))
    axis.set_yticks(range(ranks))
    axis.set_xlabel("to rank", color=_QUIET)
    axis.set_ylabel("from rank", color=_QUIET)
    axis.set_title(title, loc="left", fontsize=10)
    write_figure(figure, path)
