"""The same as PNG: bandwidth over size, or the heat map of links."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascendtune.check.comm.sweep import GIGA, Link, Row
from ascendtune.core.directories import cache_directory
from ascendtune.core.errors import MachineError
from ascendtune.core.files import write_atomically
from ascendtune.core.units import format_bytes

_BUS, _ALGORITHM, _QUIET = "#1f4e8c", "#a9c1de", "#667085"


def draw_rows(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Write busbw and algbw over size to `path`.

    Raises:
        MachineError: matplotlib is not installed, or the file cannot be written.
    """
    figure = _figure(7.5, 4.5)
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
    _save(figure, path)


def draw_links(path: Path, title: str, links: Sequence[Link], ranks: int) -> None:
    """Write the heat map of links to `path`; see `draw_rows` for errors."""
    speeds = [[float("nan")] * ranks for _ in range(ranks)]
    for link in links:
        speeds[link.sender][link.receiver] = link.bytes_per_second / GIGA
    side = max(4.0, 0.55 * ranks)
    figure = _figure(side + 1.5, side)
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
    _save(figure, path)


def _figure(width: float, height: float) -> Any:
    # Matplotlib keeps a font cache; only our own places are written to.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_directory() / "matplotlib"))
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MachineError("a picture needs matplotlib", remedy="pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_atomically(path, content.getvalue())
