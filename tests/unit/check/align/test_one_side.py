"""Gradients that one side alone has."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics
from ascendtune.check.align.paired_tensors import make_tensor_rows

ZERO = (2, 2), "float32", 0.0, 0.0, 0.0, 0.0, 0, 0, "", (0.0, 0.0, 0.0, 0.0)


def _dump(names: str, world_size: int = 2, *, detached: str = "", unused: str = "") -> RankDump:
    """Args: detached: parameters without a gradient; unused: those whose gradient is 0."""
    tensors = {}
    for order, name in enumerate(names):
        values = (2, 2), "float32", -1.0, 1.0, 0.0, 2.0, 0, 0, "", (1.0, -1.0, 1.0, -1.0)
        tensors[TensorKey("parameter_before", None, name, "", 0)] = TensorStatistics(order, "", *values)
        if name not in detached:
            tensors[TensorKey("gradient", None, name, "", 0)] = TensorStatistics(
                order, "", *(ZERO if name in unused else values)
            )
    return RankDump(Path("rank.jsonl"), world_size, tensors)


@pytest.mark.parametrize(("one", "other"), [("ab", "a"), ("a", "ab")])
def test_gradient_of_one_side_alone_is_parted(one: str, other: str) -> None:
    rows = make_tensor_rows(1, 0, _dump(one), _dump(other), with_modules=True)
    assert [row.key.name for row in rows if row.exceeds_limit and row.is_of_one_side] == ["b"]


@pytest.mark.parametrize("sides", [("b", ""), ("", "b")])
def test_gradient_that_one_side_detaches_is_parted(sides: tuple[str, str]) -> None:
    one, other = (_dump("abc", detached=each) for each in sides)
    rows = make_tensor_rows(1, 0, one, other, with_modules=True)
    assert [row.key.name for row in rows if row.exceeds_limit and row.is_of_one_side] == ["b"]


def test_gradient_of_zeros_is_as_none() -> None:
    rows = make_tensor_rows(1, 0, _dump("ab", unused="b"), _dump("ab", detached="b"), with_modules=True)
    assert len(rows) == 4 and not any(row.exceeds_limit for row in rows)


def test_other_names_on_both_sides_are_not_compared() -> None:
    rows = make_tensor_rows(1, 0, _dump("ab"), _dump("ac"), with_modules=True)
    assert not any(row.exceeds_limit for row in rows)


def test_parameters_that_only_rank_0_writes_because_they_are_divided_are_trained_on_both_sides() -> None:
    """FSDP of the blocks alone leaves embeddings whole: every rank writes these, rank 0 the others."""
    rows = make_tensor_rows(1, 1, _dump("ab"), _dump("a"), with_modules=True)
    assert rows and not any(row.exceeds_limit for row in rows)


def test_gradient_of_what_a_module_returns_as_it_came_in_is_not_compared() -> None:
    """One side casts the input of PEFT's Identity, so that its gradient is that of the adapter alone."""
    one, other = (
        RankDump(
            Path("rank.jsonl"),
            1,
            {
                TensorKey("backward", 0, kind, "output", 0): TensorStatistics(0, kind, *ZERO)
                if is_zero
                else TensorStatistics(0, kind, (2, 2), "float32", -1.0, 1.0, 0.0, 2.0, 0, 0, "", (1.0, -1.0, 1.0, -1.0))
                for kind in ("Identity", "Linear")
            },
        )
        for is_zero in (False, True)
    )
    rows = make_tensor_rows(1, 0, one, other, with_modules=True)
    assert [row.key.name for row in rows if row.exceeds_limit] == ["Linear"]
