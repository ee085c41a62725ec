"""The memory of a profile in the HTML page: a chart over time, the peak by category, its allocations."""

from __future__ import annotations

import html
from functools import partial
from typing import Any

from ascendtune.check.profile.language import in_both_languages, say
from ascendtune.check.profile.memory import CATEGORIES, MemoryUse
from ascendtune.check.profile.show_memory import peak_sentence
from ascendtune.core.terminal_text import safe
from ascendtune.core.units import format_bytes

_WIDTH, _HEIGHT = 960, 220
_LEFT, _TOP, _BOTTOM = 80, 8, 24
_LINES = 4
"""Number of lines of the grid."""


def memory_as_html(memory: MemoryUse, first_step: Any) -> str:
    """The page's section on memory.

    Args:
        first_step: number of the first profiled step; not an int if unknown.
    """
    number = first_step if isinstance(first_step, int) else None
    rows = [
        f'<tr><td><i class="memory{CATEGORIES.index(name)}"></i> {in_both_languages(partial(say, name))}'
        f'<td class="number">{format_bytes(size)}<td class="number">{100 * size / memory.peak_bytes:.1f} %'
        for name in CATEGORIES
        if (size := memory.peak.get(name, 0))
    ]
    owners = [
        f'<tr><td class="number">{format_bytes(each.size_bytes)}<td class="number">{each.count:,}'
        f"<td>{in_both_languages(partial(say, each.category))}<td>"
        f"{in_both_languages(partial(say, each.phase)) if each.phase else ''}"
        f'<td class="name">{html.escape(safe(each.operator))}'
        for each in memory.owners
    ]
    return "\n".join(
        [
            f"<h2>{in_both_languages(partial(say, 'Memory'))}</h2>",
            f"<p>{in_both_languages(lambda: peak_sentence(memory, number))}</p>",
            _chart(memory),
            "<table>",
            _heads(("category", "size", "share"), numbers=(1, 2)),
            *rows,
            "</table>",
            f"<h2>{in_both_languages(partial(say, 'allocated in these steps and held at the peak:'))}</h2>",
            "<table>",
            _heads(("size", "tensors", "category", "phase", "operator"), numbers=(0, 1)),
            *owners,
            "</table>",
        ]
    )


def _heads(names: tuple[str, ...], numbers: tuple[int, ...]) -> str:
    number = ' class="number"'
    return "<tr>" + "".join(
        f"<th{number if at in numbers else ''}>{in_both_languages(partial(say, name))}" for at, name in enumerate(names)
    )


def _chart(memory: MemoryUse) -> str:
    """The categories stacked, over the time of the profiled steps; a line marks the peak."""
    points = len(memory.seconds)
    highest = max(memory.peak_bytes, 1)
    across = (_WIDTH - _LEFT) / max(points, 1)

    def height(size: int) -> float:
        return _HEIGHT - _BOTTOM - size / highest * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for line in range(_LINES + 1):
        size = highest * line // _LINES
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{height(size):.1f}" y2="{height(size):.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{height(size) + 4:.1f}" text-anchor="end">{format_bytes(size)}</text>'
        )
    base = [0] * points
    for number, name in enumerate(CATEGORIES):
        if name not in memory.curve:
            continue
        top = [low + size for low, size in zip(base, memory.curve[name], strict=True)]
        # Each point is valid until the next one.
        upper = [f"{_LEFT + (at + side) * across:.1f},{height(top[at]):.1f}" for at in range(points) for side in (0, 1)]
        lower = [
            f"{_LEFT + (at + side) * across:.1f},{height(base[at]):.1f}" for at in range(points) for side in (0, 1)
        ]
        shape = " ".join([*upper, *reversed(lower)])
        parts.append(
            f'<polygon class="memory{number}" points="{shape}"><title>{html.escape(say(name))}</title></polygon>'
        )
        base = top
    total_seconds = memory.seconds[-1] + memory.seconds[1] if points > 1 else 1.0
    peak = _LEFT + min(1.0, memory.peak_seconds / max(total_seconds, 1e-9)) * (_WIDTH - _LEFT)
    parts.append(f'<line class="mark" x1="{peak:.1f}" x2="{peak:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
    for x, seconds, anchor in ((_LEFT, 0.0, "start"), (_WIDTH, total_seconds, "end")):
        parts.append(f'<text x="{x}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{seconds:.3g} s</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'
