"""In 16 bits: a norm says more than its elements, and rounding sends some tokens to other experts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascendtune.check.align.curve import Curve
from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics
from ascendtune.check.align.loss_noise import extra_noise
from ascendtune.check.align.paired_tensors import make_tensor_rows
from ascendtune.check.align.tensor_noise import ExtraNoise
from ascendtune.check.align.training_record import TrainingRecord

HEALTHY = (1.0, 1.0)
"""Factors of the samples and of the norm of the candidate's gradient."""


def _dump(
    dtype: str, samples: float = 1.0, norm: float = 1.0, outputs: float = 1.0, shape: tuple[int, ...] = (8, 8)
) -> RankDump:
    """Sixty-four outputs of modules, then one gradient."""
    tensors = {}
    for order in range(64):
        values = (outputs, -outputs)
        tensors[TensorKey("forward", 0, f"layer.{order}", "output", 0)] = TensorStatistics(
            order, "", (1, 2), dtype, -outputs, outputs, 0.0, 2**0.5 * outputs, 0, 0, "", values
        )
    l2 = math.prod(shape) ** 0.5 * norm
    gradient = TensorStatistics(64, "", shape, dtype, -1.0, 1.0, 0.0, l2, 0, 0, "", (samples, -samples))
    tensors[TensorKey("gradient", None, "a.weight", "", 0)] = gradient
    return RankDump(Path("rank.jsonl"), 1, tensors)


@pytest.mark.parametrize(
    ("dtype", "candidate", "exceeds_limit"),
    [
        ("bfloat16", (0.75, 0.75), True),
        ("bfloat16", (0.9, 0.95), False),
        ("bfloat16", (0.75, 1.0), False),
        ("float32", (1.0, 1.0 + 2e-5), True),
        ("float32", (1.0, 1.0 + 1e-6), False),
    ],
)
def test_norm_of_a_gradient_may_differ_less_than_its_elements(
    dtype: str, candidate: tuple[float, float], exceeds_limit: bool
) -> None:
    [*_, row] = make_tensor_rows(
        1, 0, _dump(dtype, *HEALTHY), _dump(dtype, *candidate), ExtraNoise(), with_modules=True
    )
    assert row.key.phase == "gradient" and row.exceeds_limit is exceeds_limit, (row.difference, row.limit)
    if exceeds_limit:
        assert row.difference == pytest.approx(abs(1 - candidate[1]), rel=1e-2), "what is shown is what exceeds"


def _output(norm: float, highest: float = 3.0, width: int = 1024) -> RankDump:
    """An output of bf16 whose samples show nothing."""
    values = (1.0, -1.0)
    size = (8 * width) ** 0.5 * norm
    output = TensorStatistics(0, "", (8, width), "bfloat16", -highest, highest, 0.0, size, 0, 0, "", values)
    loss = TensorStatistics(1, "", (), "float32", norm, norm, norm, norm, 0, 0, "", (norm,))
    keys = TensorKey("forward", 0, "norm", "output", 0), TensorKey("loss", 0, "", "loss", 0)
    return RankDump(Path("rank.jsonl"), 1, dict(zip(keys, (output, loss), strict=True)))


@pytest.mark.parametrize(
    ("norm", "shape", "exceeds_limit"),
    [
        (1.012, {}, True),
        (1.004, {}, False),  # one rounding of a scale
        (1.012, {"highest": 80.0}, False),  # one element is most of the norm
        (1.012, {"width": 4}, False),  # what a weight's rounding does to all tokens
    ],
)
def test_norm_of_an_output_may_differ_less_than_its_elements(
    norm: float, shape: dict[str, Any], exceeds_limit: bool
) -> None:
    sides = _output(1.0, **shape), _output(norm, **shape)
    first, _ = make_tensor_rows(1, 0, *sides, ExtraNoise(), with_modules=True)
    assert first.exceeds_limit is exceeds_limit, (first.difference, first.limit)
    assert first.is_of_norm


@pytest.mark.parametrize(("shape", "exceeds_limit"), [((), False), ((1,), False), ((4,), False), ((4, 4), True)])
def test_errors_of_few_elements_hardly_cancel_in_their_norm(shape: tuple[int, ...], exceeds_limit: bool) -> None:
    sides = _dump("bfloat16", *HEALTHY, shape=shape), _dump("bfloat16", 0.9, 0.9, shape=shape)
    [*_, row] = make_tensor_rows(1, 0, *sides, ExtraNoise(), with_modules=True)
    assert row.key.phase == "gradient" and row.exceeds_limit is exceeds_limit, (row.difference, row.limit)


@pytest.mark.parametrize(
    ("dtype", "has_experts", "outputs", "divergence"),
    [
        ("bfloat16", False, 1.035, ["forward"]),
        ("bfloat16", True, 1.035, []),
        ("bfloat16", True, 1.4, ["forward"]),
        ("float32", True, 1.035, ["forward"]),
    ],
)
def test_tokens_may_go_to_other_experts(dtype: str, has_experts: bool, outputs: float, divergence: list[str]) -> None:
    sides = _dump(dtype), _dump(dtype, outputs=outputs)
    rows = make_tensor_rows(1, 0, *sides, ExtraNoise(has_experts=has_experts), with_modules=True)
    assert sorted({row.key.phase for row in rows if row.exceeds_limit}) == divergence


@pytest.mark.parametrize(("name", "expected"), [("mlp.experts.down_proj", True), ("mlp.down_proj.weight", False)])
def test_names_of_weights_tell_experts(name: str, expected: bool) -> None:
    curve = Curve.of_columns({"step": np.ones(1), "loss": np.ones(1)}, [None], resolution=0.0, source="x")
    weights = {"parameters": {f"model.layers.0.{name}": "00"}}
    sides = (TrainingRecord("x", Path("x"), "ascendtune", curve, start_weights=each) for each in (weights, {}))
    assert extra_noise(*sides).has_experts is expected
