"""The picture of a benchmark: throughput and efficiency over the number of devices, one line for each strategy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascendtune.check.bench.cells import COMPARISONS, RECIPE_STRATEGY
from ascendtune.check.bench.judge import LEAST_EFFICIENCY, SpeedupRow
from ascendtune.check.bench.language import say
from ascendtune.core.figure import figure_style, import_matplotlib, write_figure

_INK, _QUIET, _LINES = "#e4e7ec", "#667085", ("#1f4e8c", "#d9541e", "#2f6f60", "#8c6d1f", "#6a3d9a")


def draw(path: Path, title: str, rows: Sequence[SpeedupRow]) -> None:
    """Write an SVG to `path`.

    Raises:
        MachineError: matplotlib is not installed, or the file cannot be written.
    """
    matplotlib = import_matplotlib()
    with figure_style(matplotlib, title + say(COMPARISONS[0]), {}):
        figure = matplotlib.figure.Figure(figsize=(9, 6), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        axes = figure.subplots(2, 2)
        for column, comparison in enumerate(COMPARISONS):
            members = [each for each in rows if each.comparison == comparison and each.result.repeats]
            axes[0][column].set_title(say(comparison), loc="left", fontsize=10)
            _draw_rates(axes[0][column], members)
            _draw_efficiency(axes[1][column], members)
        write_figure(figure, path)


def _lines(rows: Sequence[SpeedupRow]) -> list[tuple[str, list[SpeedupRow]]]:
    """One line per strategy; each begins at one device if that was measured."""
    names = list(dict.fromkeys(each.result.cell.strategy for each in rows))
    several = [name for name in names if name != RECIPE_STRATEGY] or names
    return [
        (
            name,
            sorted(
                (each for each in rows if each.result.cell.strategy in (name, RECIPE_STRATEGY)),
                key=lambda each: each.result.cell.devices,
            ),
        )
        for name in several
    ]


def _draw_rates(axis: Any, rows: Sequence[SpeedupRow]) -> None:
    for number, (name, line) in enumerate(_lines(rows)):
        colour = _LINES[number % len(_LINES)]
        x = [each.result.cell.devices for each in line]
        rates = [[one.tokens_per_second for one in each.result.repeats] for each in line]
        middle = [each.result.rate or 0.0 for each in line]
        errors = [
            [value - min(all_) for value, all_ in zip(middle, rates, strict=True)],
            [max(all_) - value for value, all_ in zip(middle, rates, strict=True)],
        ]
        axis.errorbar(
            x,
            middle,
            errors,
            color=colour,
            marker="o",
            markersize=4,
            capsize=3,
            label=say("as the recipe") if name == RECIPE_STRATEGY else name,
        )
        linear = [middle[0] * each / x[0] for each in x]
        axis.plot(x, linear, color=colour, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.6)
    _finish(axis, rows, say("tokens/s (dashed: linear)"))
    if rows:
        axis.legend(frameon=False)


def _draw_efficiency(axis: Any, rows: Sequence[SpeedupRow]) -> None:
    for number, (_, line) in enumerate(_lines(rows)):
        points = [(each.result.cell.devices, each.efficiency) for each in line if each.efficiency is not None]
        axis.plot(*zip(*points, strict=True), color=_LINES[number % len(_LINES)], marker="o", markersize=4)
    axis.axhline(LEAST_EFFICIENCY, color=_QUIET, linewidth=0.8, linestyle=(0, (4, 3)))
    _finish(axis, rows, say("efficiency (dashed: {target}, the target)", target=f"{LEAST_EFFICIENCY:.0%}"))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.set_xlabel(say("devices"), color=_QUIET)


def _finish(axis: Any, rows: Sequence[SpeedupRow], label: str) -> None:
    axis.set_ylabel(label, color=_QUIET)
    axis.set_ylim(bottom=0)
    axis.set_xticks(sorted({each.result.cell.devices for each in rows}))
    axis.grid(axis="y", color=_INK, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=_QUIET)
