"""After a kill at any operation on files, the next start continues bit by bit, and nothing is left over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.recipe.recipe import Recipe
from kills.points import Fault, Kind
from kills.runs import Bench, Merged, spread

SAMPLE: list[tuple[str, int, Kind, int]] = [
    ("single", 0, "kill", 6),
    ("single", 0, "stop", 3),
    ("single", 0, "full", 3),
    ("ddp", 0, "kill", 2),
    ("ddp", 1, "kill", 1),
    ("fsdp", 0, "kill", 2),
    ("fsdp", 1, "kill", 1),
]
"""Strategy, rank, fault, how many points of all."""
ALL: list[tuple[str, int, Kind]] = [
    *(("single", 0, kind) for kind in ("kill", "stop", "full")),
    *((strategy, rank, "kill") for strategy in ("ddp", "fsdp") for rank in (0, 1)),
    *((strategy, rank, "full") for strategy in ("ddp", "fsdp") for rank in (0,)),
]


@pytest.fixture
def bench(tmp_path: Path, recipe: Callable[..., Recipe]) -> Callable[[str], Bench]:
    def make(strategy: str) -> Bench:
        return Bench(tmp_path, recipe, strategy)

    return make


@pytest.mark.parametrize(("strategy", "rank", "kind", "points"), SAMPLE)
def test_fault_at_a_file_operation_loses_nothing(
    bench: Callable[[str], Bench], strategy: str, rank: int, kind: Kind, points: int
) -> None:
    runs = bench(strategy)
    for at in spread(len(runs.operations(rank)), points):
        runs.check(Fault(kind, at, rank))


@pytest.mark.soak
@pytest.mark.parametrize(("strategy", "rank", "kind"), ALL)
def test_fault_at_every_file_operation_loses_nothing(
    bench: Callable[[str], Bench], strategy: str, rank: int, kind: Kind
) -> None:
    runs = bench(strategy)
    for at in range(1, len(runs.operations(rank)) + 1):
        runs.check(Fault(kind, at, rank))


@pytest.mark.parametrize("kind", ["kill", "full"])
def test_fault_at_every_file_operation_of_a_merge_leaves_it_absent_or_whole(
    bench: Callable[[str], Bench], tmp_path: Path, kind: Kind
) -> None:
    runs = bench("single")
    runs.operations(0)
    merged = Merged(runs.whole, tmp_path / "merged" / "model", tmp_path / "count")
    operations = merged.operations()
    assert len(operations) > 10
    for at in range(1, len(operations) + 1):
        merged.check(Fault(kind, at))
