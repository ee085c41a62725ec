"""From the second step on weights differ by rounding, and what is computed with them differs by a multiple of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics
from ascendtune.check.align.paired_tensors import make_tensor_rows


def _tensor(order: int, value: float) -> TensorStatistics:
    samples = (value, -value, value, -value)
    return TensorStatistics(order, "", (2, 2), "float32", -value, value, 0.0, 2 * value, 0, 0, "", samples)


def _dump(weights: float, computed: float) -> RankDump:
    before, passed, after = (
        (TensorKey("parameter_before", None, "a.lora_B", "", 0), _tensor(0, weights)),
        (TensorKey("backward", 0, "a.lora_A", "output", 0), _tensor(1, computed)),
        (TensorKey("parameter_after", None, "a.lora_B", "", 0), _tensor(2, weights)),
    )
    return RankDump(Path("rank.jsonl"), 1, dict((before, passed, after)))


@pytest.mark.parametrize(
    ("weights", "computed", "exceeds_limit"),
    [(1e-5, 1e-4, False), (0.0, 1e-4, True), (1e-5, 1e-3, True)],
    ids=["small adapter after one update", "equal weights", "more than weights explain"],
)
def test_a_difference_that_weights_explain_is_within_the_limit(
    weights: float, computed: float, exceeds_limit: bool
) -> None:
    sides = _dump(1.0, 1.0), _dump(1.0 + weights, 1.0 + computed)
    [row] = [row for row in make_tensor_rows(2, 0, *sides, with_modules=True) if row.key.phase == "backward"]
    assert row.exceeds_limit is exceeds_limit, (row.difference, row.limit)
