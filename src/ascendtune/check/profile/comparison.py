"""Compares two profiles, part by part and operator by operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascendtune.check.profile.advice_entry import milliseconds
from ascendtune.check.profile.kinds import short_name
from ascendtune.check.profile.language import say
from ascendtune.check.profile.profile import RankProfile
from ascendtune.check.profile.show import parts_of
from ascendtune.core.terminal_text import columns_of, safe, wrap_words
from ascendtune.core.text_table import indented_table
from ascendtune.core.units import format_bytes

_SHOWN = 15
_KEPT = 500
_WIDTH = 80
_LEAST_NAME = 24
"""Minimum width of the column with names of operators; other columns are dropped for it."""
_SPARE = ("kind", "calls", "before")
"""Columns that are dropped on a narrow terminal, in this order."""
_LEAST_SHOWN_SECONDS = 5e-6
"""Smaller differences would be shown as 0.00 ms."""


@dataclass(frozen=True)
class OperatorRow:
    """An operator in both profiles: calls and seconds of one step; 0 if it does not run."""

    name: str
    kind: str
    before_calls: float
    calls: float
    before_seconds: float
    seconds: float

    @property
    def difference(self) -> float:
        """Difference in seconds of a step; positive if it is slower now."""
        return self.seconds - self.before_seconds


def compare_profiles(ranks: list[RankProfile], before: list[RankProfile]) -> list[OperatorRow]:
    """The operators of the first ranks, ordered by the difference of their times."""
    new, old = ranks[0].split, before[0].split
    rows = []
    for key in new.operators.keys() | old.operators.keys():
        (name, kind), one, other = key, old.operators.get(key), new.operators.get(key)
        rows.append(
            OperatorRow(
                name,
                kind,
                one.calls / old.steps if one else 0.0,
                other.calls / new.steps if other else 0.0,
                one.seconds / old.steps if one else 0.0,
                other.seconds / new.steps if other else 0.0,
            )
        )
    return sorted(rows, key=lambda row: (-abs(row.difference), row.name, row.kind))


def comparison_as_text(ranks: list[RankProfile], before: list[RankProfile], columns: int) -> str:
    """Both profiles' parts, and the operators whose times differ most, as text.

    Args:
        columns: width of the terminal.
    """
    first, other = ranks[0], before[0]
    change = first.step_seconds - other.step_seconds
    title = say(
        "step {before} -> {now} ({change} %), milliseconds of a step:",
        before=milliseconds(other.step_seconds), now=milliseconds(first.step_seconds),
        change=f"{100 * change / other.step_seconds if other.step_seconds else 0:+.1f}",
    )  # fmt: skip
    old = {title: seconds / other.split.steps for title, seconds, _ in parts_of(other.split)}
    parts = [
        [say(title), *_times(old[title], seconds / first.split.steps)] for title, seconds, _ in parts_of(first.split)
    ]
    shown = [row for row in compare_profiles(ranks, before)[:_SHOWN] if abs(row.difference) >= _LEAST_SHOWN_SECONDS]
    heads = ["", *(say(name) for name in ("before", "now", "change"))]
    lines = [*wrap_words(title, columns, "", "  "), *indented_table(heads, parts, columns, right=heads[1:])]
    lines += _memory_lines(first, other)
    if not shown:
        return "\n".join([*lines, "", say("no operator's time differs")])
    rows = [
        [*_times(row.before_seconds, row.seconds), _calls(row), say(row.kind), safe(short_name(row.name))[:_WIDTH]]
        for row in shown
    ]
    heads = [say(name) for name in ("before", "now", "change", "calls", "kind", "name")]
    lines += ["", say("operators, those first whose time differs most:")]
    names = [say(name) for name in _SPARE]
    heads, rows = _fitting_columns(heads, rows, columns - 2, names)
    right = [head for head in heads[:-1] if head != say("kind")]
    return "\n".join([*lines, *indented_table(heads, rows, columns, right=right)])


def comparison_as_plain(ranks: list[RankProfile], before: list[RankProfile]) -> dict[str, Any]:
    """The comparison as plain values; all times are seconds of one step."""

    def side(rank: RankProfile) -> dict[str, Any]:
        return {
            "trace": str(rank.path),
            "step_seconds": rank.step_seconds,
            "parts_seconds": {title: seconds / rank.split.steps for title, seconds, _ in parts_of(rank.split)},
            "memory_peak_bytes": rank.memory.peak_bytes if rank.memory is not None else None,
        }

    return {
        "before": side(before[0]),
        "now": side(ranks[0]),
        "operators": [
            {
                "name": row.name,
                "kind": row.kind,
                "before": {"calls": row.before_calls, "seconds": row.before_seconds},
                "now": {"calls": row.calls, "seconds": row.seconds},
            }
            for row in compare_profiles(ranks, before)[:_KEPT]
        ],
    }


def _fitting_columns(
    heads: list[str], rows: list[list[str]], columns: int, spare: list[str]
) -> tuple[list[str], list[list[str]]]:
    """The columns that fit beside the last one, which has the names of operators."""
    sizes = [max(columns_of(line[at]) for line in (heads, *rows)) for at in range(len(heads))]
    sizes[-1] = min(sizes[-1], _LEAST_NAME)
    columns_kept = list(range(len(heads)))
    for name in spare:
        if sum(sizes[at] + 2 for at in columns_kept) - 2 <= columns:
            break
        columns_kept.remove(heads.index(name))
    return [heads[at] for at in columns_kept], [[row[at] for at in columns_kept] for row in rows]


def _times(before: float, now: float) -> list[str]:
    """Both times in milliseconds, and their difference."""
    return [f"{1e3 * before:.2f}", f"{1e3 * now:.2f}", f"{1e3 * (now - before):+.2f}"]


def _calls(row: OperatorRow) -> str:
    before, now = f"{row.before_calls:.0f}", f"{row.calls:.0f}"
    return before if before == now else f"{before} -> {now}"


def _memory_lines(first: RankProfile, other: RankProfile) -> list[str]:
    """The peaks of memory, if both profiles have one."""
    if first.memory is None or other.memory is None:
        return []
    before, now = format_bytes(other.memory.peak_bytes), format_bytes(first.memory.peak_bytes)
    return ["  " + say("memory at most: {before} -> {now}", before=before, now=now)]
