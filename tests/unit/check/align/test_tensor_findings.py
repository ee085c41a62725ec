"""Sentences on the first tensor that parts."""

from __future__ import annotations

import numpy as np
import pytest

from ascendtune.check.align.dump import TensorKey, TensorStatistics
from ascendtune.check.align.dump_comparison import BatchComparison, DumpComparison, FirstDifference
from ascendtune.check.align.tensor_findings import difference_text, with_dump_evidence
from ascendtune.check.align.tensor_row import TensorRow
from ascendtune.check.finding import failure, ok

UNIT = 2.0**-24


def _row(phase: str, difference: float, limit: float, dtype: str = "float32", kind: str = "Linear") -> TensorRow:
    tensor = TensorStatistics(0, kind, (2, 2), dtype, -1.0, 1.0, 0.0, 2.0, 0, 0, "", (1.0, -1.0, 1.0, -1.0))
    return TensorRow(1, 0, TensorKey(phase, 0, "model.q_proj", "output", 0), tensor, tensor, difference, limit, np.nan)


@pytest.mark.parametrize(
    ("difference", "limit", "dtype", "is_named"),
    [
        (2.0**-12, 8 * UNIT, "float32", True),
        (0.3, 8 * UNIT, "float32", False),
        # After something in bf16 the limit is that of bf16.
        (0.3, 0.1, "float32", False),
        (0.3, 0.1, "bfloat16", False),
    ],
)
def test_difference_of_the_size_of_tf32_names_the_settings(
    difference: float, limit: float, dtype: str, is_named: bool
) -> None:
    place = FirstDifference(1, "forward", _row("forward", difference, limit, dtype), (0,))
    (found,) = with_dump_evidence((ok("forward", "losses agree"),), DumpComparison(place=place), ("compare TF32",))
    assert found.status == "failure"
    assert ("compare TF32" in found.evidence) is is_named


def test_other_token_ids_are_named_as_such() -> None:
    row = _row("forward", 1.1, 1e-6, kind="Embedding")
    for common, word in ((0, "token ids"), (1, "forward")):
        place = FirstDifference(1, "data", row, (0,), batch=BatchComparison(1, 1, common))
        assert difference_text(place) == f"step 1, {word}, model.q_proj, rank 0"


def test_weights_whose_hashes_differ_without_effect_are_a_warning() -> None:
    hashes = failure("start", "1 of 3 parameters differ before the first step: q", remedy="compare the files")
    (found,) = with_dump_evidence((hashes,), DumpComparison(without_effect=_row("parameter_before", 1e-3, 0.0)))
    assert found.status == "warning" and hashes.measured in found.evidence
