"""The blocks that represent all blocks."""

from __future__ import annotations

import pytest

from ascendtune.train.plan.repeated_layers import Repeats, find_repeats


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("a" * 28, Repeats(0, 28, 1, 28)),
        ("d" + "m" * 26, Repeats(1, 27, 1, 27)),
        ("lllf" * 8, Repeats(0, 32, 4, 32)),
        ("f" * 22 + "tt", Repeats(0, 22, 1, 24)),
    ],
)
def test_finds_the_longest_run_that_repeats(kinds: str, expected: Repeats) -> None:
    assert find_repeats(kinds) == expected


@pytest.mark.parametrize("kinds", ["a" * 28, "d" + "m" * 26, "lllf" * 8, "lllf" * 9 + "l", "f" * 22 + "tt", "ab", "a"])
def test_kept_blocks_are_whole_periods_and_keep_both_ends(kinds: str) -> None:
    repeats = find_repeats(kinds)
    for count in repeats.counts():
        kept = repeats.kept(count)
        assert len(kept) == count
        assert (len(kinds) - count) % repeats.period == 0
        text = "".join(kinds[number] for number in kept)
        edge = min(repeats.start + repeats.edge, count)
        assert text[:edge] == kinds[:edge]
        assert text[-repeats.edge :] == kinds[-repeats.edge :]


def test_few_layers_are_traced_all() -> None:
    assert find_repeats("aaaaa").counts() == [5]
    assert find_repeats("abcde").counts() == [5]


def test_labels_are_the_same_for_both_counts() -> None:
    repeats = find_repeats("a" * 28)
    labels = [{repeats.label(position, count) for position in range(count)} - {None} for count in repeats.counts()]
    assert labels[0] == labels[1] == {"0", "1", "-1", "-2"}
