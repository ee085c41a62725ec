"""A parameter that one side alone does not update."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics
from ascendtune.check.align.paired_tensors import make_tensor_rows


def _dump(*, skips: str = "", cancels: str = "") -> RankDump:
    """Parameters a and b, one update of each.

    Args:
        skips: names of parameters that stay as they are.
        cancels: those whose update is within the rounding of their gradient.
    """

    def tensor(order: int, size: float) -> TensorStatistics:
        samples = (size, -size, size, -size)
        return TensorStatistics(order, "", (2, 2), "float32", -size, size, 0.0, 2 * size, 0, 0, "", samples)

    tensors = {}
    for order, name in enumerate("ab"):
        change = 0.0 if name in skips else 1e-9 if name in cancels else 1e-3
        tensors[TensorKey("parameter_before", None, name, "", 0)] = tensor(order, 1e-2)
        tensors[TensorKey("gradient", None, name, "", 0)] = tensor(order, 1.0)
        tensors[TensorKey("parameter_after", None, name, "", 0)] = tensor(order, 1e-2 - change)
    return RankDump(Path("rank.jsonl"), 1, tensors)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("sides", [("", "b"), ("b", "")])
def test_update_that_one_side_skips_is_parted(step: int, sides: tuple[str, str]) -> None:
    rows = make_tensor_rows(step, 0, *(_dump(skips=each) for each in sides), with_modules=True)
    assert [row.key.name for row in rows if row.exceeds_limit] == ["b"]


def test_update_that_cancels_on_both_sides_is_not_compared() -> None:
    rows = make_tensor_rows(3, 0, _dump(cancels="b"), _dump(skips="b"), with_modules=True)
    assert not any(row.exceeds_limit for row in rows)
