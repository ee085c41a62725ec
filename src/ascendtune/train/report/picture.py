"""A picture of a run: loss, learning rate, gradient norm, throughput. Uses only the run directory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ascendtune.core.errors import MachineError
from ascendtune.core.figure import figure_style, import_matplotlib, write_figure
from ascendtune.core.foreign_json import is_number
from ascendtune.core.log import warn
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import format_count

_LOSS, _OTHER = ("#a9c1de", "#1f4e8c"), ("#b3d1c9", "#2f6f60")
_EVAL, _QUIET = "#d9541e", "#667085"
_MOST_POINTS = 1500
"""Points of a curve; more would not be visible, and would make the SVG large."""
_SMOOTH_POINTS = 400
_LOG_ABOVE = 8.0
"""A loss that falls by more than this factor is drawn on a logarithmic axis."""


def draw(run: RunDir) -> list[Path]:
    """Write loss.png and loss.svg into the run directory; return their paths, none if there is nothing to draw.

    Raises:
        MachineError: the directory is not writable.
    """
    steps = _Records(list(run.read_metrics()))
    if not steps.records:
        return []
    try:
        matplotlib = import_matplotlib()
    except MachineError:
        warn("no picture of the loss: pip install matplotlib")
        return []
    settings = {"axes.titlesize": 10, "axes.titlelocation": "left"}
    with figure_style(matplotlib, run.path.resolve().name, settings):
        figure = matplotlib.figure.Figure(figsize=(9, 6.4), layout="constrained")
        _compose(figure, run, steps, _Records(run.comparable_evaluations()))
        paths = [run.path / f"loss.{kind}" for kind in ("png", "svg")]
        for path in paths:
            write_figure(figure, path)
        return paths


@dataclass(frozen=True)
class _Records:
    records: list[dict[str, Any]]

    def curve(self, key: str) -> tuple[list[float], list[float]]:
        """Steps and values of the records with a finite value."""
        records = [record for record in self.records if is_number(record.get(key))]
        return [record["step"] for record in records], [record[key] for record in records]

    def resumed_at(self) -> list[int]:
        """The first steps of the second and later attempts."""
        pairs = zip(self.records, self.records[1:], strict=False)
        return [later["step"] for before, later in pairs if later.get("attempt") != before.get("attempt")]


def _compose(figure: Any, run: RunDir, steps: _Records, evaluations: _Records) -> None:
    # Only stages that compare two answers record the share of pairs in which the chosen answer is ahead.
    small = 4 if steps.curve("accuracy")[0] else 3
    grid = figure.add_gridspec(2, small, height_ratios=[1.9, 1])
    axes = [figure.add_subplot(grid[0, :]), *(figure.add_subplot(grid[1, column]) for column in range(small))]
    figure.suptitle(run.path.resolve().name, x=0.01, ha="left", fontsize=13, fontweight="bold")
    _draw_loss(axes[0], steps, evaluations)
    _draw_small(axes[1], steps, "learning_rate", "learning rate", lambda value, _: f"{value:.1e}" if value else "0")
    _draw_small(axes[2], steps, "grad_norm", "gradient norm", lambda value, _: f"{value:g}")
    _draw_small(axes[3], steps, "tokens_per_second", "tokens/s", lambda value, _: format_count(value))
    if small == 4:
        _draw_small(axes[4], steps, "accuracy", "accuracy", lambda value, _: f"{value:.0%}")
    for axis in axes:
        _style_axis(axis, steps, ticks=9 if axis is axes[0] else 4)
    axes[0].set_xlabel("step", color=_QUIET)


def _style_axis(axis: Any, steps: _Records, ticks: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.grid(axis="y", color="#e4e7ec", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#98a2b3")
    axis.tick_params(colors=_QUIET, which="both")
    first, last = steps.records[0]["step"], steps.records[-1]["step"]
    margin = max(0.5, (last - first) * 0.015)
    axis.set_xlim(first - margin, last + margin)
    axis.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for step in steps.resumed_at():
        axis.axvline(step - 0.5, color=_QUIET, linewidth=0.8, linestyle=(0, (4, 3)))


def _draw_loss(axis: Any, steps: _Records, evaluations: _Records) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    x, loss = steps.curve("loss")
    _draw_curve(axis, x, loss, _LOSS, "training")
    eval_x, eval_loss = evaluations.curve("loss")
    if eval_x:
        axis.plot(
            eval_x, eval_loss, color=_EVAL, linewidth=1, marker="o", markersize=4.5, markeredgecolor="white",
            label="evaluation",
        )  # fmt: skip
    for number, step in enumerate(steps.resumed_at(), 2):
        axis.annotate(
            f"attempt {number}", (step - 0.5, 1), xycoords=("data", "axes fraction"),
            xytext=(3, -9), textcoords="offset points", fontsize=8, color=_QUIET,
        )  # fmt: skip
    losses = [*loss, *eval_loss]
    if losses and min(losses) > 0 and max(losses) / min(losses) > _LOG_ABOVE:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_title("loss" + (f" {loss[0]:.4g} → {loss[-1]:.4g}" if len(loss) > 1 else ""))
    if losses:
        axis.legend(frameon=False, labelcolor=_QUIET, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderpad=0)


def _draw_small(axis: Any, steps: _Records, key: str, title: str, labels: Callable[[float, int], str]) -> None:
    axis.set_title(title)
    x, values = steps.curve(key)
    if not values:
        axis.set_yticks([])
        axis.text(0.5, 0.5, "not recorded", transform=axis.transAxes, ha="center", va="center", color=_QUIET)
        return
    _draw_curve(axis, x, values, _OTHER, title)
    if min(values) >= 0:
        axis.set_ylim(bottom=0, top=_top(values))
    axis.yaxis.set_major_formatter(labels)


def _draw_curve(axis: Any, x: Sequence[float], y: Sequence[float], colors: tuple[str, str], name: str) -> None:
    """Draw every point in a faint color and the running median over them; if there are few points, only these."""
    faint, strong = colors
    window = len(x) // 40
    if window < 2 or name == "learning rate":
        axis.plot(
            *_thinned(x, y), color=strong, linewidth=1.4, marker="o" if window < 2 else None, markersize=3.2, label=name
        )
        return
    axis.plot(*_thinned(x, y), color=faint, linewidth=0.8, label=f"{name}, each step")
    axis.plot(*_smoothed(x, y, window), color=strong, linewidth=1.6, label=f"median of {window} steps")


def _top(values: Sequence[float]) -> float:
    """Upper end of an axis: a single outlier, such as the first step's gradient, must not flatten the rest."""
    ordered = sorted(values)
    high = ordered[int(0.99 * (len(ordered) - 1))]
    return (max(values) if max(values) < 3 * high else high) * 1.1 or 1.0


def _smoothed(x: Sequence[float], y: Sequence[float], window: int) -> tuple[list[float], list[float]]:
    """Running median: the same on a logarithmic axis, and not affected by single spikes."""
    half, stride = window // 2, max(1, len(x) // _SMOOTH_POINTS)
    centres = [*range(0, len(x) - 1, stride), len(x) - 1]
    return [x[at] for at in centres], [median(y[max(0, at - half) : at + half + 1]) for at in centres]


def _thinned(x: Sequence[float], y: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """At most `_MOST_POINTS` points: the lowest and the highest of each interval, so that no spike is lost."""
    if len(x) <= _MOST_POINTS:
        return x, y
    stretch = math.ceil(2 * len(x) / _MOST_POINTS)
    positions: list[int] = []
    for start in range(0, len(x), stretch):
        stretch_range = range(start, min(start + stretch, len(x)))
        positions += sorted({min(stretch_range, key=y.__getitem__), max(stretch_range, key=y.__getitem__)})
    return [x[at] for at in positions], [y[at] for at in positions]
