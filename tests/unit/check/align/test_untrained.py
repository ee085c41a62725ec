"""Differences at positions that no gradient reaches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ascendtune.check.align.dump import TensorKey, TensorStatistics
from ascendtune.check.align.dump_comparison import DumpComparison, FirstDifference
from ascendtune.check.align.tensor_findings import with_dump_evidence
from ascendtune.check.align.tensor_row import TensorRow
from ascendtune.check.align.untrained import trained_rows
from ascendtune.check.finding import ok

REACHED = (1.0, 1.0, 1.0, 0.0)
"""Gradients at four sampled positions: the last is padding."""


def row(
    phase: str, name: str, one: tuple[float, ...], other: tuple[float, ...], tokens: int = 8, **changes: float
) -> TensorRow:
    def tensor(samples: tuple[float, ...]) -> TensorStatistics:
        return TensorStatistics(
            0, "Linear", (1, tokens, 4), "float32", -1, 1, 0, math.sqrt(4 * tokens), 0, 0, "", samples
        )

    sizes = {"difference": 0.0 if one == other else 0.1, "limit": 1e-5, "scale": 1.0, **changes}
    return TensorRow(1, 0, TensorKey(phase, 0, name, "output", 0), tensor(one), tensor(other), **sizes)


GRADIENT = row("backward", "norm", REACHED, REACHED)
SAME = (1.0, 2.0, 3.0, 4.0)
AT_PADDING = (1.0, 2.0, 3.0, 5.0)
BEFORE_IT = (1.0, 2.1, 3.0, 5.0)


def test_output_that_differs_only_at_padding_is_left_out() -> None:
    padding, real = row("forward", "mlp", SAME, AT_PADDING), row("forward", "norm", SAME, BEFORE_IT)
    assert trained_rows([padding, real, GRADIENT]) == ([real, GRADIENT], padding)


def test_all_rows_stay_where_every_position_is_trained_on() -> None:
    rows = [row("forward", "mlp", SAME, AT_PADDING), row("backward", "norm", SAME, SAME)]
    assert trained_rows(rows) == (rows, None)


def test_difference_that_no_sample_shows_is_of_the_padding_in_attention_alone() -> None:
    attention, mlp = (row("forward", name, SAME, SAME, difference=0.1) for name in ("self_attn", "mlp"))
    assert trained_rows([mlp, attention, GRADIENT])[0] == [mlp, GRADIENT]
    assert trained_rows([attention, mlp, GRADIENT])[0] == [GRADIENT]


def test_nan_is_never_left_out() -> None:
    rows = [row("forward", "self_attn", SAME, SAME, difference=math.inf), GRADIENT]
    assert trained_rows(rows) == (rows, None)


def test_tensors_of_experts_after_padding_are_left_out() -> None:
    padding, experts = row("forward", "mlp", SAME, AT_PADDING), row("forward", "act", SAME, BEFORE_IT, tokens=16)
    assert trained_rows([experts, padding, GRADIENT])[0] == [experts, GRADIENT]
    assert trained_rows([padding, experts, GRADIENT])[0] == [GRADIENT]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_samples_that_are_not_finite_on_both_sides_are_not_differences(value: float) -> None:
    before = row("forward", "mlp", (value, 2.0, 3.0, 4.0), (value, 2.0, 3.0, 5.0))
    assert trained_rows([before, GRADIENT]) == ([GRADIENT], before)
    at_padding = row("forward", "mlp", (1.0, 2.0, 3.0, value), (1.0, 2.0, 3.0, value), difference=0.1)
    assert trained_rows([at_padding, GRADIENT]) == ([at_padding, GRADIENT], None)


def test_loss_that_parts_beside_such_a_difference_says_where_to_look() -> None:
    loss = replace(row("loss", "", (4.8653,), (4.8652,)), key=TensorKey("loss", 0, "", "loss", 0))
    place = FirstDifference(1, "forward", loss, (0,))
    beside = DumpComparison(steps=(1,), place=place, without_effect=row("forward", "self_attn", SAME, AT_PADDING))
    before = ok("forward", "")
    (found,) = with_dump_evidence((before,), beside)
    assert "self_attn differs too" in found.evidence[0]
    (alone,) = with_dump_evidence((before,), replace(beside, without_effect=None))
    assert alone.evidence == found.evidence[1:]
