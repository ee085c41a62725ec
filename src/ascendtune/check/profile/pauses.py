"""Stretches of a step in which no operator runs: Python code, files, locks, garbage collection, sleep.

A trace does not say what the program does there, only between which operators it does it.
"""

from __future__ import annotations

from collections import defaultdict

from ascendtune.check.profile.host_timeline import OpenEvent
from ascendtune.check.profile.intervals import Interval
from ascendtune.check.profile.kinds import short_name
from ascendtune.check.profile.trace import ProfileTrace

LEAST_MICROSECONDS = 5_000
"""Shorter ones are launches, and moments in which another process has the core."""


class Pauses:
    """Collects the pauses of the main thread from its segments, which are given in order."""

    def __init__(self, trace: ProfileTrace) -> None:
        self.found: list[Interval] = []
        """Labelled as `label_of` does, sorted, disjoint."""
        self._trace = trace
        self._before, self._begun, self._reached = "", 0.0, float("-inf")

    def add(self, start: float, end: float, inner: OpenEvent, *, is_idle: bool) -> None:
        """A segment in microseconds; `is_idle`: no operator, and no part of a step that has a name of its own."""
        if start != self._reached:
            # Another step.
            self._close(self._reached, "")
            self._before, self._begun = "", start
        if not is_idle:
            name = self._trace.names[inner.name] if inner.name >= 0 and inner.kind else ""
            self._close(start, name)
            self._before, self._begun = name or self._before, end
        self._reached = end

    def end(self) -> list[Interval]:
        """All that were found, after the last segment."""
        self._close(self._reached, "")
        return self.found

    def _close(self, moment: float, after: str) -> None:
        if moment - self._begun >= LEAST_MICROSECONDS:
            self.found.append(Interval(self._begun, moment, label_of(self._before, after)))


def label_of(before: str, after: str) -> str:
    """The place between two operators or kernels; "" is the edge of a step."""
    return " → ".join(short_name(each) or "…" for each in (before, after))


class PauseTimes:
    """Seconds in each step by place.

    Args:
        steps: number of steps.
    """

    def __init__(self, steps: int) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(lambda: [0.0] * steps)

    def add(self, place: str, step: int, seconds: float) -> None:
        self._seconds[place][step] += seconds

    def in_every_step(self, least_seconds: float) -> dict[str, float]:
        """Mean seconds of a step, of the places that take `least_seconds` or more in each step."""
        return {
            place: sum(seconds) / len(seconds)
            for place, seconds in self._seconds.items()
            if min(seconds) >= least_seconds
        }
