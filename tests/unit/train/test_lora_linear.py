"""The LoRA linear layer against PEFT's: numbers, gradients, random draws, casts, files."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import Linear
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.train.tuner.lora_linear import FusedLoraLinear, fuse_adapters


class Counting(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[function._schema.name.removeprefix("aten::")] += 1
        return function(*args, **(kwargs or {}))


class Plain(nn.Module):
    def __init__(self, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(24, 40, bias=bias, dtype=dtype)
        self.second = nn.Linear(40, 16, bias=bias, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return hidden


def pair(
    *, bias: bool = True, weights: torch.dtype = torch.float64, adapters: torch.dtype = torch.float64, **keys: Any
) -> tuple[Any, Any]:
    """PEFT's model, and ours with the same weights; B is not zero."""
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=6, target_modules=["first", "second"], **keys)
    theirs = get_peft_model(Plain(bias, weights), config)
    for name, parameter in theirs.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape).to(adapters) * 0.3
    ours = copy.deepcopy(theirs)
    fuse_adapters(ours)
    assert [type(each) for each in ours.modules() if isinstance(each, Linear)] == [FusedLoraLinear] * 2
    return theirs, ours


def results(model: Any, x: torch.Tensor, autocast: torch.dtype | None = None) -> list[torch.Tensor]:
    """Output, gradient of the input, gradients of the adapters by name."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(3)
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        output = model(x)
    (output.float() if autocast else output).square().sum().backward()
    found = [output.detach(), x.grad, *(each.grad for _, each in model.named_parameters() if each.requires_grad)]
    assert None not in found
    return found  # type: ignore[return-value]


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("keys", [{}, {"use_rslora": True}, {"lora_dropout": 0.4}], ids=str)
@pytest.mark.parametrize("x", [drawn(5, 24), drawn(2, 3, 24), drawn(3, 24, 2).transpose(1, 2)], ids=[1, 2, "strided"])
def test_output_and_gradients_equal_pefts(bias: bool, keys: dict[str, Any], x: torch.Tensor) -> None:
    theirs, ours = pair(bias=bias, **keys)
    for expected, found in zip(results(theirs, x), results(ours, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 24)])
def test_a_model_may_change_the_output_in_place(shape: tuple[int, ...]) -> None:
    """As Llama 4's experts and Gemma 3n do."""
    theirs, ours = pair()
    for model in (theirs, ours):
        model.base_model.model.first.register_forward_hook(lambda _module, _args, output: output.mul_(2).add_(1))
    for expected, found in zip(results(theirs, drawn(*shape)), results(ours, drawn(*shape)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("keys", [{}, {"use_rslora": True}, {"lora_dropout": 0.4}], ids=str)
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("x", [torch.float32, torch.bfloat16])
def test_under_autocast_results_are_as_near_to_exact_ones_as_pefts(
    keys: dict[str, Any], weights: torch.dtype, x: torch.dtype
) -> None:
    theirs, ours = pair(weights=weights, adapters=torch.float32, **keys)
    values = drawn(64, 24, dtype=x)
    exact = results(copy.deepcopy(theirs).double(), values.double())
    of_theirs, of_ours = (results(each, values, torch.bfloat16) for each in (theirs, ours))
    assert [each.dtype for each in of_ours] == [each.dtype for each in of_theirs]
    for number, (reference, their, our) in enumerate(zip(exact, of_theirs, of_ours, strict=True)):
        size = reference.norm()
        distance, allowed = ((each - reference).norm() / size for each in (our, their))
        assert distance < 0.02 and distance <= 1.25 * allowed, number


def test_one_layer_casts_its_adapter_alone() -> None:
    counts = []
    for model in pair(weights=torch.bfloat16, adapters=torch.float32):
        layer, x = model.base_model.model.first, drawn(8, 24, dtype=torch.bfloat16).requires_grad_()
        with Counting() as counting:
            with torch.autocast("cpu", torch.bfloat16):
                output = layer(x)
            output.backward(torch.ones_like(output))
        counts.append(counting.count["_to_copy"])
    # PEFT's: x to fp32 and back, A, B, and the gradient of each. Ours: A, B and their gradients.
    assert counts == [8, 4]


def test_input_without_gradient_costs_no_product() -> None:
    layer, counts = pair()[1].base_model.model.first, []
    for needs_gradient in (True, False):
        output = layer(drawn(8, 24).requires_grad_(needs_gradient))
        with Counting() as counting:
            output.backward(torch.ones_like(output))
        counts.append(counting.count["mm"] + counting.count["addmm_"])
    assert counts == [5, 3]


def disabled(model: Any) -> None:
    model.base_model.disable_adapter_layers()


def two_active(model: Any) -> None:
    model.add_adapter("more", LoraConfig(r=2, target_modules=["first", "second"], init_lora_weights=False))
    model.base_model.set_adapter(["default", "more"])


def merged(model: Any) -> None:
    model.merge_adapter()


def hooked(model: Any) -> None:
    for part in (model.base_model.model.first.lora_A["default"], model.base_model.model.second.base_layer):
        part.register_forward_hook(lambda *_: None)


def trained_base(model: Any) -> None:
    for layer in (model.base_model.model.first, model.base_model.model.second):
        layer.base_layer.requires_grad_(True)


def mixed_types(model: Any) -> None:
    for layer in (model.base_model.model.first, model.base_model.model.second):
        layer.lora_A.float()
        layer.lora_B.float()


@pytest.mark.parametrize("change", [disabled, two_active, merged, hooked, trained_base, mixed_types])
def test_other_behaviour_of_pefts_layer_is_kept(change: Callable[[Any], None]) -> None:
    theirs, ours = pair()
    for model in (theirs, ours):
        torch.manual_seed(5)
        change(model)
    x = drawn(6, 24)
    outputs = []
    for model in (theirs, ours):
        output = model(x)
        outputs.append(output.detach())
        if output.requires_grad:
            output.sum().backward()
    assert torch.equal(*outputs)
    gradients = [[each.grad for each in model.parameters()] for model in (theirs, ours)]
    for expected, found in zip(*gradients, strict=True):
        assert (expected is None and found is None) or torch.equal(expected, found)


def test_dora_stays_pefts() -> None:
    theirs, ours = pair(use_dora=True)
    for expected, found in zip(results(theirs, drawn(5, 24)), results(ours, drawn(5, 24)), strict=True):
        assert torch.equal(expected, found)


def test_layers_that_are_not_plain_linear_stay_pefts() -> None:
    class Other(nn.Linear):
        pass

    model = nn.ModuleDict({"first": Other(4, 4), "table": nn.Embedding(4, 4)})
    tuned = get_peft_model(model, LoraConfig(target_modules=["first", "table"]))
    fuse_adapters(tuned)
    assert not any(isinstance(each, FusedLoraLinear) for each in tuned.modules())


def test_adapter_files_are_read_either_way(tmp_path: Any) -> None:
    theirs, ours = pair(weights=torch.float32, adapters=torch.float32)
    before = get_peft_model_state_dict(theirs)
    after = get_peft_model_state_dict(ours)
    assert {name: each.shape for name, each in before.items()} == {name: each.shape for name, each in after.items()}
    for source, target in ((theirs, ours), (ours, theirs)):
        weights = {name: torch.randn_like(each) for name, each in get_peft_model_state_dict(source).items()}
        for model in (source, target):
            assert not set_peft_model_state_dict(model, weights).unexpected_keys
        x = drawn(3, 24, dtype=torch.float32)
        torch.testing.assert_close(source(x), target(x), rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_compiles_as_one_graph() -> None:
    """Forward and backward, with dropout and without: `fullgraph` raises at the first graph break."""
    for keys in ({}, {"lora_dropout": 0.4}):
        _, ours = pair(weights=torch.float32, adapters=torch.float32, **keys)
        compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
        x = drawn(4, 24, dtype=torch.float32)
        for expected, found in zip(results(ours, x), results(compiled, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_compiles_as_one_graph_under_autocast() -> None:
    _, ours = pair(weights=torch.bfloat16, adapters=torch.float32)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    x = drawn(4, 24, dtype=torch.bfloat16)
    for expected, found in zip(results(ours, x, torch.bfloat16), results(compiled, x, torch.bfloat16), strict=True):
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_recomputed_layer_gives_the_same_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    _, ours = pair(lora_dropout=0.4)
    x = drawn(6, 24)
    expected = results(ours, x)
    found = results(Recomputed(ours, checkpoint), x)
    for plain, recomputed in zip(expected, found, strict=True):
        assert torch.equal(plain, recomputed)


class Recomputed(nn.Module):
    def __init__(self, model: nn.Module, checkpoint: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._checkpoint = model, checkpoint

    def forward(self, x: torch.Tensor) -> Any:
        return self._checkpoint(self.model, x, use_reentrant=False)
