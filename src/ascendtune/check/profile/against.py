"""Two profiles beside each other, part by part and operator by operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ascendtune.check.profile.profile import RankProfile
from ascendtune.check.profile.show import milliseconds, parts_of
from ascendtune.core.terminal_text import safe

_SHOWN = 15
_KEPT = 500
_WIDTH = 44
_LEAST_SHOWN_SECONDS = 5e-6
"""A smaller difference would be shown as 0.00 ms."""


@dataclass(frozen=True)
class Row:
    """One operator in both profiles: calls and seconds of one step; 0 where it does not run."""

    name: str
    kind: str
    before_calls: float
    calls: float
    before_seconds: float
    seconds: float

    @property
    def difference(self) -> float:
        """Seconds of a step; above 0 where it has become slower."""
        return self.seconds - self.before_seconds


def compare(ranks: list[RankProfile], before: list[RankProfile]) -> list[Row]:
    """The operators of the first ranks, those first whose time differs most."""
    new, old = ranks[0].split, before[0].split
    rows = []
    for key in new.operators.keys() | old.operators.keys():
        (name, kind), one, other = key, old.operators.get(key), new.operators.get(key)
        rows.append(
            Row(
                name,
                kind,
                one.calls / old.steps if one else 0.0,
                other.calls / new.steps if other else 0.0,
                one.seconds / old.steps if one else 0.0,
                other.seconds / new.steps if other else 0.0,
            )
        )
    return sorted(rows, key=lambda row: (-abs(row.difference), row.name, row.kind))


def comparison_as_text(ranks: list[RankProfile], before: list[RankProfile]) -> str:
    """Both profiles' parts and the operators whose time differs most, for people."""
    first, other = ranks[0], before[0]
    change = first.step_seconds - other.step_seconds
    lines = [
        f"step {milliseconds(other.step_seconds)} -> {milliseconds(first.step_seconds)} "
        f"({100 * change / other.step_seconds if other.step_seconds else 0:+.1f} %), milliseconds of a step:",
        f"  {'':<{_WIDTH}} {'before':>10} {'now':>10} {'change':>10}",
    ]
    old = {title: seconds / other.split.steps for title, seconds, _ in parts_of(other.split)}
    for title, seconds, _ in parts_of(first.split):
        lines.append(_line(title, old[title], seconds / first.split.steps))
    lines += ["", "operators, those first whose time differs most:"]
    lines.append(f"  {'':<{_WIDTH}} {'before':>10} {'now':>10} {'change':>10}   {'calls':>11}  kind")
    for row in compare(ranks, before)[:_SHOWN]:
        if abs(row.difference) < _LEAST_SHOWN_SECONDS:
            break
        calls = f"{row.before_calls:.0f}" + (
            f" -> {row.calls:.0f}" if round(row.calls) != round(row.before_calls) else ""
        )
        lines.append(f"{_line(_short(row.name), row.before_seconds, row.seconds)}   {calls:>11}  {row.kind}")
    if not any(abs(row.difference) >= _LEAST_SHOWN_SECONDS for row in compare(ranks, before)):
        lines[-2:] = ["no operator's time differs"]
    return "\n".join(lines)


def comparison_as_plain(ranks: list[RankProfile], before: list[RankProfile]) -> dict[str, Any]:
    """The comparison as plain values; all times are seconds of one step."""

    def parts(rank: RankProfile) -> Mapping[str, float]:
        return {title: seconds / rank.split.steps for title, seconds, _ in parts_of(rank.split)}

    return {
        "before": {"trace": str(before[0].path), "step_seconds": before[0].step_seconds, "parts": parts(before[0])},
        "now": {"trace": str(ranks[0].path), "step_seconds": ranks[0].step_seconds, "parts": parts(ranks[0])},
        "operators": [
            {
                "name": row.name,
                "kind": row.kind,
                "before": {"calls": row.before_calls, "seconds": row.before_seconds},
                "now": {"calls": row.calls, "seconds": row.seconds},
            }
            for row in compare(ranks, before)[:_KEPT]
        ],
    }


def _line(title: str, before: float, now: float) -> str:
    return f"  {title:<{_WIDTH}} {1e3 * before:>10.2f} {1e3 * now:>10.2f} {1e3 * (now - before):>+10.2f}"


def _short(name: str) -> str:
    shown = safe(name).removeprefix("autograd::engine::evaluate_function: ")
    return shown if len(shown) <= _WIDTH else shown[: _WIDTH - 1] + "…"
