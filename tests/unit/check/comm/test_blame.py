"""The rank at fault, from the places of wrong values."""

from __future__ import annotations

from typing import Any

import pytest

from ascendtune.check.comm.judge import describe_wrong_values


def label(ranks: Any) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)


def _carried(ranks: int, wrong: set[tuple[int, int]]) -> dict[int, dict[str, Any]]:
    """Every rank has a part from every rank; `wrong` are pairs (from, on)."""
    return {
        rank: {"parts": [{"from": source, "wrong": int((source, rank) in wrong)} for source in range(ranks)]}
        for rank in range(ranks)
    }


def _sums(ranks: int, wrong: set[int], groups: dict[tuple[int, ...], int] | None = None) -> dict[int, dict[str, Any]]:
    isolated = [{"group": list(group), "wrong": count} for group, count in (groups or {}).items()]
    return {
        rank: {"parts": [{"from": None, "wrong": int(rank in wrong)}], "isolated": isolated} for rank in range(ranks)
    }


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (_carried(4, set()), None),
        (_carried(4, {(2, rank) for rank in range(4)}), "values sent by rank 2 are wrong on every receiver"),
        (_carried(4, {(source, 1) for source in range(4)}), "rank 1 receives wrong values from every sender"),
        (_carried(4, {(3, 0)}), "wrong values from rank 3 to rank 0"),
        (_carried(4, {*((2, rank) for rank in range(4)), (3, 0)}), "wrong values from rank 2 to rank 0"),
        (_carried(2, {(1, 0)}), "wrong values from rank 1 to rank 0"),
        (_carried(2, {(1, 0), (1, 1)}), "values sent by rank 1 are wrong on every receiver"),
        (_carried(3, {(a, b) for a in range(3) for b in range(3)}), "every value is wrong"),
        (_sums(4, set()), None),
        (_sums(4, {3}), "rank 3 has wrong sums, the other ranks have right ones"),
        (_sums(4, {0, 1, 2, 3}, {(0, 1): 0, (1, 2): 5, (2, 3): 5, (0, 3): 0}), "rank 2 makes the sums wrong"),
        (_sums(4, {0, 1, 2, 3}, {(0, 1): 0, (1, 2): 5, (2, 3): 0, (0, 3): 0}), "between rank 1 and rank 2"),
        (_sums(4, {0, 1, 2, 3}, {(0, 1): 0, (1, 2): 0, (2, 3): 0, (0, 3): 0}), "no single rank is at fault"),
        (_sums(2, {0, 1}, {(0,): 0, (1,): 4}), "rank 1 makes the sums wrong"),
        (_sums(2, {0, 1}, {(0,): 4, (1,): 4}), "the sums are wrong on every rank"),
    ],
)
def test_wrong_values_are_blamed_on_the_rank_or_pair_they_come_from(
    cells: dict[int, dict[str, Any]], said: str | None
) -> None:
    found = describe_wrong_values(cells, label)
    assert found is None if said is None else found is not None and said in found
