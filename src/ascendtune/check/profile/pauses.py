"""Spans of a step in which no operator runs: Python code, files, locks, garbage collection, sleep.

A trace does not show what the program does there, only the operators before and after.
"""

from __future__ import annotations

from collections import defaultdict

from ascendtune.check.profile.host_timeline import OpenEvent
from ascendtune.check.profile.intervals import Interval
from ascendtune.check.profile.kinds import short_name
from ascendtune.check.profile.trace import ProfileTrace

LEAST_MICROSECONDS = 5_000
"""Shorter spans are launches, and times in which another process has the core."""


class Pauses:
    """Collects the pauses of the main thread from its segments, which must be added in order."""

    def __init__(self, trace: ProfileTrace) -> None:
        self.found: list[Interval] = []
        """The pauses, labelled by `label_of`, sorted, disjoint."""
        self._trace = trace
        self._before, self._pause_start, self._reached = "", 0.0, float("-inf")

    def add(self, start: float, end: float, inner: OpenEvent, *, is_idle: bool) -> None:
        """Add a segment, in microseconds; `is_idle`: without operator, and not in a named part of the step."""
        if start != self._reached:
            # The beginning of another step.
            self._close(self._reached, "")
            self._before, self._pause_start = "", start
        if not is_idle:
            name = self._trace.names[inner.name] if inner.name >= 0 and inner.kind else ""
            self._close(start, name)
            self._before, self._pause_start = name or self._before, end
        self._reached = end

    def end(self) -> list[Interval]:
        """Return all pauses, after the last segment."""
        self._close(self._reached, "")
        return self.found

    def _close(self, moment: float, after: str) -> None:
        if moment - self._pause_start >= LEAST_MICROSECONDS:
            self.found.append(Interval(self._pause_start, moment, label_of(self._before, after)))


def label_of(before: str, after: str) -> str:
    """The place between two operators or kernels; "" is the edge of a step."""
    return " → ".join(short_name(each) or "…" for each in (before, after))


class PauseTimes:
    """Seconds in each step, by place.

    Args:
        steps: number of steps.
    """

    def __init__(self, steps: int) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(lambda: [0.0] * steps)

    def add(self, place: str, step: int, seconds: float) -> None:
        self._seconds[place][step] += seconds

    def in_every_step(self, least_seconds: float) -> dict[str, float]:
        """Mean seconds per step of those places that take at least `least_seconds` in each step."""
        return {
            place: sum(seconds) / len(seconds)
            for place, seconds in self._seconds.items()
            if min(seconds) >= least_seconds
        }
