"""Arithmetic of time intervals. All lists are sorted by start; times are microseconds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """A half-open interval [start, end), in microseconds, with a label."""

    start: float
    end: float
    label: str = ""
    event: int = -1

    @property
    def seconds(self) -> float:
        return (self.end - self.start) * 1e-6


def uncovered(intervals: Iterable[Interval], covered: Sequence[tuple[float, float]] = ()) -> list[Interval]:
    """The parts of `intervals` outside `covered`, without overlaps: where two overlap, the first one is kept.

    Args:
        covered: disjoint intervals.
    """
    parts: list[Interval] = []
    position, reached = 0, float("-inf")
    for interval in intervals:
        start = max(interval.start, reached)
        reached = max(reached, interval.end)
        while position < len(covered) and covered[position][1] <= start:
            position += 1
        at = position
        while start < interval.end:
            if at == len(covered) or covered[at][0] >= interval.end:
                parts.append(Interval(start, interval.end, interval.label, interval.event))
                break
            if covered[at][0] > start:
                parts.append(Interval(start, covered[at][0], interval.label, interval.event))
            start = max(start, covered[at][1])
            at += 1
    return parts


def union(intervals: Iterable[Interval | tuple[float, float]]) -> list[tuple[float, float]]:
    """Disjoint intervals that cover the same times."""
    merged_parts: list[tuple[float, float]] = []
    for interval in intervals:
        start, end = interval[0], interval[1]
        if merged_parts and start <= merged_parts[-1][1]:
            if end > merged_parts[-1][1]:
                merged_parts[-1] = (merged_parts[-1][0], end)
        elif end > start:
            merged_parts.append((start, end))
    return merged_parts


def merged(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of two lists of disjoint intervals."""
    return union(sorted([*one, *other]))


def is_inside(moment: float, spans: Sequence[tuple[float, float]]) -> bool:
    """Whether one of the disjoint spans contains `moment`."""
    at = bisect_right(spans, (moment, float("inf"))) - 1
    return at >= 0 and moment < spans[at][1]


def clipped(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    """The parts of `intervals` between `start` and `end`."""
    return [
        Interval(max(each.start, start), min(each.end, end), each.label, each.event)
        for each in intervals
        if each.end > start and each.start < end
    ]


class IntervalIndex:
    """Disjoint intervals, searchable by time."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        self._intervals = uncovered(sorted(intervals))
        self._ends = [each.end for each in self._intervals]

    def within(self, start: float, end: float) -> list[Interval]:
        """The parts of the intervals between `start` and `end`."""
        inside = []
        for at in range(bisect_left(self._ends, start), len(self._ends)):
            if self._intervals[at].start >= end:
                break
            inside.append(self._intervals[at])
        return clipped(inside, start, end)
