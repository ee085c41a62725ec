"""Interval arithmetic against sets of moments."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ascendtune.check.profile.intervals import Interval, IntervalIndex, is_inside, merged, uncovered, union

_spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda each: (each[0], each[0] + each[1])), max_size=12
).map(sorted)


def moments(spans: list[tuple[float, float]]) -> set[int]:
    return {moment for start, end, *_ in spans for moment in range(int(start), int(end))}


@given(_spans, _spans)
def test_uncovered_gives_each_moment_to_the_first_interval_that_has_it(
    spans: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    covered = union(others)
    found = uncovered([Interval(*span, str(number)) for number, span in enumerate(spans)], covered)
    assert sum(each.end - each.start for each in found) == len(moments(spans) - moments(others))
    for each in found:
        for moment in range(int(each.start), int(each.end)):
            owner = next(number for number, (start, end) in enumerate(spans) if start <= moment < end)
            assert each.label == str(owner)


@given(_spans, _spans)
def test_union_and_merged_cover_the_same_moments_once(
    spans: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    both = merged(union(spans), union(others))
    assert moments(both) == moments(spans) | moments(others)
    assert all(one[1] < other[0] for one, other in pairwise(both))


@given(_spans, st.integers(0, 50), st.integers(0, 10))
def test_an_index_finds_what_touches_a_span(spans: list[tuple[int, int]], start: int, width: int) -> None:
    found = IntervalIndex([Interval(*span) for span in spans]).within(start, start + width)
    assert moments(list(found)) == moments(spans) & set(range(start, start + width))


@given(_spans, st.integers(-1, 60))
def test_a_moment_is_inside_the_span_that_contains_it(spans: list[tuple[int, int]], moment: int) -> None:
    assert is_inside(moment, union(spans)) == (moment in moments(spans))
