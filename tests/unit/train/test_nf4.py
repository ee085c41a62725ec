"""NF4: levels by their formula, bytes as in bitsandbytes, products as with the dequantised weights."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.recipe.sections import ModelSection
from ascendtune.train.tuner.nf4 import BLOCK, LEVELS, Nf4, bytes_of, dequantise, quantise
from ascendtune.train.tuner.quantised_linear import Nf4Linear, become_quantised, quantising

SECTION = ModelSection(path="m", quantization="nf4")
RECORDED = Path(__file__).parents[2] / "golden/nf4.json"


def drawn(shape: tuple[int, ...], kind: str, seed: int) -> torch.Tensor:
    """From integers, which are the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-500, 501, (4, *shape), generator=generator).sum(0) / 1024
    if kind == "long tails":
        weight = weight * weight * weight
    if kind == "zeros":
        weight[torch.randint(0, 10, shape, generator=generator) < 7] = 0
        weight[:4] = 0
    return weight


def test_levels_are_quantiles_of_a_normal_distribution() -> None:
    """QLoRA, appendix E: eight levels below zero and seven above it, the outermost at the same probability."""
    outermost = 0.9677083
    positive = torch.special.ndtri(torch.linspace(outermost, 0.5, 9, dtype=torch.float64)[:-1])
    negative = -torch.special.ndtri(torch.linspace(outermost, 0.5, 8, dtype=torch.float64)[:-1])
    expected = torch.cat([negative, torch.zeros(1, dtype=torch.float64), positive.flip(0)]) / positive[0]
    torch.testing.assert_close(torch.tensor(LEVELS, dtype=torch.float64), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", json.loads(RECORDED.read_text())["cases"], ids=lambda case: case["kind"])
def test_bytes_are_those_of_bitsandbytes(case: dict[str, Any]) -> None:
    weight = drawn(tuple(case["shape"]), case["kind"], case["seed"])
    packed, scales, levels = (
        torch.frombuffer(bytearray(base64.b64decode(case[name])), dtype=torch.uint8)
        for name in ("packed", "scales", "levels")
    )
    single, double = quantise(weight, double=False), quantise(weight, double=True)
    for each in (single, double):
        assert torch.equal(each.packed, packed)
    assert torch.equal(single.scales, scales)
    # Their mean of the scales is summed in another order, which moves what lies in the middle of two levels.
    assert (double.scales.int() - levels.int()).abs().max() <= 1
    assert (double.scales != levels).float().mean() <= 0.01
    assert double.outer is not None
    outer = torch.tensor([case["mean"], *case["outer"]])
    torch.testing.assert_close(double.outer.view(torch.float32), outer, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (7, 9), (3, 1001), (64, 64), (515, 1024)])
@pytest.mark.parametrize("kind", ["normal", "long tails", "zeros"])
def test_each_number_becomes_the_nearest_level_of_its_block(
    shape: tuple[int, int], dtype: torch.dtype, kind: str
) -> None:
    weight = drawn(shape, kind, seed=math.prod(shape)).to(dtype)
    found = quantise(weight, double=False)
    dense = dequantise(found, torch.float32)
    assert dense.shape == weight.shape
    numbers = nn.functional.pad(weight.float().flatten(), (0, -weight.numel() % BLOCK)).view(-1, BLOCK)
    choices = numbers.abs().amax(1)[:, None] * torch.tensor(LEVELS)
    nearest = (numbers[:, :, None] - choices[:, None, :]).abs().amin(2).flatten()[: weight.numel()]
    error = (dense - weight.float()).abs().flatten()
    assert (error <= nearest + 1e-6 * weight.float().abs().max()).all()
    assert torch.equal(dequantise(found, dtype), dense.to(dtype))
    # What is quantised already does not change.
    assert torch.equal(quantise(dense, double=False).packed, found.packed)


def test_double_quantisation_moves_scales_by_less_than_one_in_a_hundred() -> None:
    weight = drawn((512, 512), "normal", seed=5)
    single, double = (dequantise(quantise(weight, double=each), torch.float32) for each in (False, True))
    assert not torch.equal(single, double)
    assert (single - double).norm() < 0.01 * single.norm()


@pytest.mark.parametrize(("double", "bits"), [(False, 4.5), (True, 4.127)])
def test_bits_of_a_weight(double: bool, bits: float) -> None:
    found = quantise(torch.ones(512, 512), double=double)
    held = sum(each.nbytes for each in found[:3] if isinstance(each, torch.Tensor))
    assert held == bytes_of(512 * 512, double=double)
    assert 8 * held / 512**2 == pytest.approx(bits, abs=0.001)


@pytest.mark.parametrize("double", [False, True])
def test_a_layer_computes_with_the_weight_that_its_bytes_stand_for(double: bool) -> None:
    linear = nn.Linear(96, 40)
    linear.requires_grad_(False)
    plain = nn.Linear(96, 40)
    plain.load_state_dict(linear.state_dict())
    become_quantised(linear, SECTION.model_copy(update={"double_quantization": double}), torch.device("cpu"))
    assert isinstance(linear, Nf4Linear) and [name for name, _ in linear.named_parameters()] == ["bias"]
    plain.weight.data = linear.weight
    x, y = (torch.linspace(-1, 1, 480).view(5, 96).requires_grad_() for _ in range(2))
    ours, theirs = linear(x), plain(y)
    assert torch.equal(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)
    assert not linear.state_dict().keys() - {"bias"}


@pytest.mark.parametrize("input_trains", [False, True])
def test_a_bias_that_trains_gets_its_gradient(input_trains: bool) -> None:
    """PEFT's `bias: all` trains it beside an adapter."""
    linear, plain = (nn.Linear(96, 40) for _ in range(2))
    plain.load_state_dict(linear.state_dict())
    become_quantised(linear, SECTION, torch.device("cpu"))
    x = torch.linspace(-1, 1, 960).view(2, 5, 96).requires_grad_(input_trains)
    for each in (linear, plain):
        each(x).sum().backward()
    assert linear.bias.grad is not None and torch.equal(linear.bias.grad, plain.bias.grad)
    assert (x.grad is not None) == input_trains


def test_autocast_computes_in_its_own_type() -> None:
    linear = nn.Linear(64, 32).requires_grad_(False)
    become_quantised(linear, SECTION, torch.device("cpu"))
    x = torch.ones(2, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        output = linear(x)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_of_level_and_scale_are_rounded_into_the_matrix(dtype: torch.dtype) -> None:
    """Not by way of an fp32 one, which would be written and read."""
    quantised = quantise(drawn((48, 65), "usual", 0), double=False)
    exact = dequantise(quantised, torch.float32)
    with Operations() as operations:
        found = dequantise(quantised, dtype)
    assert torch.equal(found, exact.to(dtype))
    assert operations.names.count("aten::mul") == 1 and "aten::copy_" not in operations.names


def test_autograd_keeps_no_whole_matrix() -> None:
    linear = nn.Linear(64, 32).requires_grad_(False)
    become_quantised(linear, SECTION, torch.device("cpu"))
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        linear(torch.ones(2, 64, requires_grad=True))
    assert {each.dtype for each in kept} == {torch.uint8}


def test_casting_the_model_keeps_the_scales() -> None:
    linear = nn.Linear(64, 32).requires_grad_(False)
    become_quantised(linear, SECTION, torch.device("cpu"))
    before = linear.weight
    linear.to(torch.bfloat16)
    assert torch.equal(linear.weight, before)


def test_weights_are_read_and_quantised_one_by_one() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    read: list[nn.Module] = []
    block = Block().requires_grad_(False)
    fill = quantising([block.up, block.down], SECTION, read.append, torch.device("cpu"))
    fill(block)
    assert read == [block.up, block.down, block]
    assert isinstance(block.up, Nf4Linear) and isinstance(block.down, Nf4Linear)
    fill(block)
    assert read == [block.up, block.down, block, block]


def test_several_traces_without_memory_do_not_meet() -> None:
    for _ in range(2):
        with FakeTensorMode():
            found = Nf4(torch.empty(32, dtype=torch.uint8), torch.empty(4, dtype=torch.uint8), None, (8, 8))
            assert dequantise(found, torch.bfloat16).shape == (8, 8)
    assert dequantise(quantise(torch.ones(8, 8), double=False), torch.float32).eq(1).all()
