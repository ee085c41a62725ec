"""Two trainings in fp32, one of which rounds the inputs of its matrix products to 11 bits, as TF32 and HF32 do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from ascendtune.check.align.curve import Curve
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import TrainingRecord, read_training_record
from ascendtune.check.align.verdict import verdict
from bare_loop import Bare

_TO_11_BITS = 1 << 13
"""fp32 has 13 bits more."""


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    """The nearest numbers of 11 bits; any shape, fp32."""
    bits = tensor.detach().contiguous().view(torch.int32) + _TO_11_BITS // 2
    return (bits & -_TO_11_BITS).view(torch.float32)


class _ReducedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None
        return linear(_rounded(inputs), _rounded(weight), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight = map(_rounded, ctx.saved_tensors)
        whole = gradients[0].flatten(0, -2)
        gradient = _rounded(gradients[0])
        of_weight = gradient.flatten(0, -2).T @ inputs.flatten(0, -2)
        return gradient @ weight, of_weight, whole.sum(0) if ctx.has_bias else None


def _reduce_products(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = lambda inputs, m=module: _ReducedLinear.apply(inputs, m.weight, m.bias)  # type: ignore


def _compared(one: Path, other: Path) -> tuple[TrainingComparison, str]:
    sides = read_training_record(one), read_training_record(other)
    found = compare_trainings(*sides, expected_noise(*sides))
    return found, verdict(found, *sides)


def test_side_whose_products_are_in_hf32_is_aligned_and_named(tmp_path: Path) -> None:
    one, other = Bare(steps=8).run(tmp_path / "gpu"), Bare(steps=8, edit=_reduce_products).run(tmp_path / "npu")
    # Without the record of the settings only their effect is known.
    suspected, _ = _compared(one, other)
    assert suspected.divergence is not None and any("allow_hf32" in each for each in suspected.divergence.evidence)
    for path, products in ((one, "fp32"), (other, "hf32")):
        facts = path / "recorded.json"
        record = {**json.loads(facts.read_text()), "fp32_products": {"matmul": products, "conv": "fp32"}}
        facts.write_text(json.dumps(record))
    found, sentence = _compared(one, other)
    assert found.divergence is None, found.divergence
    assert "within the noise of hf32, " in sentence
    assert sentence.endswith("; npu computes fp32 products in HF32, gpu does not")
    forward, later = (next(each for each in found.findings if each.code == code) for code in ("forward", "later"))
    assert "npu computes fp32 products in HF32, gpu does not" in forward.evidence
    assert "allow_hf32 = False" in later.evidence[-1]


@pytest.mark.parametrize("factor", [1.1, 0.9])
def test_fault_beyond_the_rounding_of_tf32_is_found(tmp_path: Path, factor: float) -> None:
    def scale(model: nn.Module) -> None:
        _reduce_products(model)
        model.get_parameter("model.layers.1.mlp.down_proj.weight").register_hook(lambda gradient: gradient * factor)

    sides = []
    for name, edit, products in (("gpu", _reduce_products, "tf32"), ("npu", scale, "hf32")):
        path = Bare(edit=edit).run(tmp_path / name)
        facts = json.loads((path / "recorded.json").read_text())
        (path / "recorded.json").write_text(json.dumps({**facts, "fp32_products": {"matmul": products}}))
        sides.append(path)
    found, _ = _compared(*sides)
    assert found.divergence is not None and found.divergence.code == "backward"
    assert "down_proj" in found.divergence.measured


def _side(products: Any, *, precision: str | None = "fp32", names: tuple[str, ...] = ()) -> TrainingRecord:
    columns = {"step": np.arange(1.0, 5), "loss": np.full(4, 2.0)}
    curve = Curve.of_columns(columns, [None] * 4, resolution=0.0, source="")
    attempts = [{"fp32_products": each} for each in (products if isinstance(products, list) else [products])]
    return TrainingRecord(
        "run", Path("run"), "ascendtune", curve, recipe={}, run={"attempts": attempts}, precision=precision,
        start_weights={"parameters": dict.fromkeys(names, "")},
    )  # fmt: skip


def test_products_of_a_run_are_the_coarsest_of_its_attempts() -> None:
    plain, reduced = {"matmul": "fp32", "conv": "tf32"}, {"matmul": "tf32", "conv": "tf32"}
    assert _side(plain).fp32_products == "fp32"
    assert _side([plain, reduced]).fp32_products == _side([reduced, None]).fp32_products == "tf32"
    assert _side([plain, None]).fp32_products is None and _side({}).fp32_products is None
    # Convolutions have an effect in models that have some.
    assert _side(plain, names=("layers.0.conv1d.weight",)).fp32_products == "tf32"
    assert _side(reduced, precision="bf16").product_type == "bf16"


def test_recorded_fp32_is_not_suspected_to_be_tf32() -> None:
    one = _side({"matmul": "fp32", "conv": "fp32"})
    other = replace(one, curve=replace(one.curve, losses=one.curve.losses * (1 + 1e-5)))
    for side, is_suspected in ((one, False), (replace(one, run={}), True)):
        found = compare_trainings(side, other, expected_noise(side, other)).divergence
        assert found is not None and found.code == "forward"
        assert any("allow_tf32" in each for each in found.evidence) is is_suspected
