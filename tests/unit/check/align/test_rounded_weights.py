"""Weights that one side rounds to the type of its matrix products, as DeepSpeed and FSDP do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics
from ascendtune.check.align.paired_tensors import make_tensor_rows

APART = 2.0**-9
"""Of a number that one side has rounded to bf16."""


def _tensor(order: int, kind: str, dtype: str, factor: float) -> TensorStatistics:
    samples = tuple(factor * each for each in (1.0, -1.0, 1.0, -1.0))
    return TensorStatistics(order, kind, (2, 2), dtype, -factor, factor, 0.0, 2 * factor, 0, 0, "", samples)


def _dump(*, products: str, factor: float, kind: str = "RMSNorm") -> RankDump:
    """A first layer whose output of `kind` is fp32, and a product of type `products` after it."""
    tensors = {
        TensorKey("parameter_before", None, "norm.weight", "", 0): _tensor(0, "", "float32", 1.0),
        TensorKey("forward", 0, "norm", "input.0", 0): _tensor(1, kind, "float32", 1.0),
        TensorKey("forward", 0, "norm", "output", 0): _tensor(2, kind, "float32", factor),
        TensorKey("forward", 0, "rotary", "output", 0): _tensor(3, "Rotary", "float32", factor),
        TensorKey("forward", 0, "q_proj", "output", 0): _tensor(4, "Linear", products, factor),
    }
    return RankDump(Path("rank.jsonl"), 1, tensors)


@pytest.mark.parametrize(
    ("products", "kind", "divergence"),
    [
        ("bfloat16", "RMSNorm", []),
        ("float32", "RMSNorm", ["norm", "rotary", "q_proj"]),
        # Tokens are looked up in the type that the table is held in.
        ("bfloat16", "Embedding", ["norm", "rotary"]),
    ],
)
def test_fp32_output_of_a_trained_module_may_be_off_by_a_rounded_weight(
    products: str, kind: str, divergence: list[str]
) -> None:
    one, other = (_dump(products=products, factor=each, kind=kind) for each in (1.0, 1.0 + APART))
    rows = make_tensor_rows(1, 0, one, other, with_modules=True)
    assert [row.key.name for row in rows if row.exceeds_limit] == divergence


def test_fp32_output_of_a_module_that_does_not_train_is_held_to_fp32() -> None:
    one, other = (_dump(products="bfloat16", factor=each) for each in (1.0, 1.0 + APART))
    for side in (one, other):
        del side.tensors[TensorKey("parameter_before", None, "norm.weight", "", 0)]
    rows = make_tensor_rows(1, 0, one, other, with_modules=True)
    assert [row.key.name for row in rows if row.exceeds_limit] == ["norm", "rotary"]
