"""Elements without a gradient are moved by weight decay alone: of LoRA's A at first, of tokens that do not occur."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ascendtune.check.align.dump import RankDump, TensorKey, TensorStatistics
from ascendtune.check.align.paired_tensors import make_tensor_rows


def _dump(after: float, *, gradient: float = 0.0, dtype: str = "bfloat16") -> RankDump:
    """A parameter of 0.5 that an update takes to `after`, beside modules that compute in `dtype`."""

    def tensor(size: float, dtype: str) -> TensorStatistics:
        samples = (size, -size, size, -size)
        return TensorStatistics(0, "", (2, 2), dtype, -size, size, 0.0, 2 * size, 0, 0, "", samples)

    tensors = {
        TensorKey("forward", None, "a", "output", 0): tensor(1.0, dtype),
        TensorKey("parameter_before", None, "a.lora_A.weight", "", 0): tensor(0.5, "float32"),
        TensorKey("gradient", None, "a.lora_A.weight", "", 0): tensor(gradient, "float32"),
        TensorKey("parameter_after", None, "a.lora_A.weight", "", 0): tensor(after, "float32"),
    }
    return RankDump(Path("rank.jsonl"), 1, tensors)


@pytest.mark.parametrize(
    ("step", "after", "exceeds_limit"),
    [
        (1, 0.5 * (1 - 3e-4), True),
        # The last digit of the weight.
        (1, 0.5 - 2**-24, False),
        (1, 0.5, False),
        # Gradients of earlier steps may move it.
        (2, 0.5 * (1 - 3e-4), False),
    ],
)
def test_decay_that_one_side_alone_has_is_parted(step: int, after: float, exceeds_limit: bool) -> None:
    found = [row for row in make_tensor_rows(step, 0, _dump(0.5), _dump(after), with_modules=True) if row.exceeds_limit]
    assert [row.key.phase for row in found] == (["parameter_after"] if exceeds_limit else [])


def test_decay_of_a_weight_that_one_side_has_rounded_is_not_parted() -> None:
    """DeepSpeed makes its fp32 weights from those in bf16; the decay of each is in proportion."""
    one, other = _dump(0.5 * (1 - 1e-3)), _dump(0.501 * (1 - 1e-3))
    key = TensorKey("parameter_before", None, "a.lora_A.weight", "", 0)
    rounded = other.tensors[key]._replace(samples=(0.501, -0.501, 0.501, -0.501))
    other = replace(other, tensors={**other.tensors, key: rounded})
    rows = make_tensor_rows(1, 0, one, other, with_modules=True)
    assert not any(row.exceeds_limit for row in rows if row.key.phase == "parameter_after")


def test_decay_below_the_last_digit_of_coarser_weights_is_not_a_difference() -> None:
    one, other = _dump(0.5 * (1 - 1e-5)), _dump(0.5)
    key = TensorKey("parameter_after", None, "a.lora_A.weight", "", 0)
    other = replace(other, tensors={**other.tensors, key: other.tensors[key]._replace(dtype="bfloat16")})
    rows = make_tensor_rows(1, 0, one, other, with_modules=True)
    assert not any(row.exceeds_limit for row in rows if row.key.phase == "parameter_after")


def test_gradient_that_is_lost_on_one_side_decides_nothing_about_the_update() -> None:
    sides = _dump(0.5), _dump(0.49, gradient=1e-30)
    rows = make_tensor_rows(1, 0, *sides, with_modules=True)
    assert not any(row.exceeds_limit for row in rows if row.key.phase == "parameter_after")


def _embeddings(after: float) -> RankDump:
    """Two elements that a gradient moves by 0.1, and two that are taken from 0.5 to `after`."""

    def tensor(*samples: float) -> TensorStatistics:
        rms = sum(each**2 for each in samples) ** 0.5 / 2
        return TensorStatistics(0, "", (2, 2), "float32", min(samples), max(samples), 0.0, 2 * rms, 0, 0, "", samples)

    tensors = {
        TensorKey("forward", None, "embed", "output", 0): tensor(1.0, -1.0, 1.0, -1.0)._replace(dtype="float16"),
        TensorKey("parameter_before", None, "embed.weight", "", 0): tensor(0.5, 0.5, 0.5, 0.5),
        TensorKey("gradient", None, "embed.weight", "", 0): tensor(1.0, -1.0, 0.0, 0.0),
        TensorKey("parameter_after", None, "embed.weight", "", 0): tensor(0.4, 0.6, after, after),
    }
    return RankDump(Path("rank.jsonl"), 1, tensors)


@pytest.mark.parametrize(("after", "exceeds_limit"), [(0.5 * (1 - 1e-5), True), (0.5, False)])
def test_decay_shows_beside_elements_that_gradients_move(after: float, exceeds_limit: bool) -> None:
    rows = make_tensor_rows(1, 0, _embeddings(0.5), _embeddings(after), with_modules=True)
    assert any(row.exceeds_limit for row in rows if row.key.phase == "parameter_after") == exceeds_limit
