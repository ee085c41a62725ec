"""Frozen linear layers with quantised weights, dequantised for each product, forward and backward, and then freed.

For the backward pass, autograd keeps such a layer's bytes, which are in memory anyway. They are buffers: strategies
shard parameters only, so each rank has them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.tuner.mixtures import find_mixtures
from ascendtune.train.tuner.module_use import attributes_read
from ascendtune.train.tuner.nf4 import Nf4, dequantise, quantise, without_content
from ascendtune.train.tuner.targets import linear_modules

_PARTS = ("packed", "scales", "outer")


class Nf4Linear(nn.Linear):
    """A linear layer converted to one with a quantised weight; its bias, if any, is unchanged."""

    packed: torch.Tensor
    scales: torch.Tensor
    outer: torch.Tensor | None
    dense_dtype: torch.dtype
    """Dtype of the weight before quantisation."""

    @property
    def nf4(self) -> Nf4:
        return Nf4(self.packed, self.scales, self.outer, (self.out_features, self.in_features))

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]  # no longer a parameter
        """(outputs, inputs), dequantised at each access."""
        return dequantise(self.nf4, self.dense_dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., inputs) to (..., outputs), in autocast's dtype, or in that of the input without autocast."""
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        output: torch.Tensor = _QuantisedProduct.apply(input.to(dtype), bias, *self.nf4)  # type: ignore[no-untyped-call]
        return output


class _QuantisedProduct(torch.autograd.Function):
    """x (..., inputs) times a quantised matrix (outputs, inputs), plus a bias (outputs,), which some adapters train."""

    @staticmethod
    def forward(
        x: torch.Tensor, bias: torch.Tensor | None,
        packed: torch.Tensor, scales: torch.Tensor, outer: torch.Tensor | None, shape: tuple[int, ...],
    ) -> torch.Tensor:  # fmt: skip
        return nn.functional.linear(x, dequantise(Nf4(packed, scales, outer, shape), x.dtype), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _x, _bias, *parts, ctx.shape = inputs
        ctx.save_for_backward(*parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        packed, scales, outer = ctx.saved_tensors
        needs_x, needs_bias, *_ = ctx.needs_input_grad
        of_x = of_bias = None
        if needs_x:
            of_x = gradient @ dequantise(Nf4(packed, scales, outer, ctx.shape), gradient.dtype)
        if needs_bias:
            of_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0)
        return of_x, of_bias, None, None, None, None


def quantisable_linears(model: Any, section: ModelSection) -> list[nn.Linear]:
    """The modules of `model` whose weights `model.quantization` quantises; empty without it.

    They are its plain linear modules except the head, the routers, and those whose weight the model's code reads.

    Raises:
        RecipeError: there are none.
    """
    if section.quantization is None:
        return []
    mixtures = find_mixtures(model)
    linears = [
        model.get_submodule(name)
        for name in linear_modules(model)
        if type(model.get_submodule(name)) is nn.Linear
        and not any(mixture.is_router(name) for mixture in mixtures)
        and "weight" not in attributes_read(model, name)
    ]
    if not linears:
        raise RecipeError(
            f"model.quantization: {type(model).__name__} has no plain linear module outside its head",
            code="nothing-to-quantise",
            remedy="remove model.quantization",
        )
    return linears


def require_no_parameter_adapted(tuned: Any, linears: Iterable[nn.Linear]) -> None:
    """Raise if an adapter of `tuned` changes a parameter of `linears`: the quantised weight is not a parameter.

    Raises:
        RecipeError: there is such an adapter.
    """
    quantised = set(linears)
    for name, module in tuned.named_modules():
        parameter = getattr(module, "parameter_name", None)
        if parameter is not None and getattr(module, "base_layer", None) in quantised:
            module_name = name.removeprefix("base_model.model.")
            raise RecipeError(
                f"model.quantization: {module_name}.{parameter} is adapted as a parameter, by a change of the weight "
                "itself, and this weight is quantised",
                code="quantised-parameter-adapted",
                remedy=f"name the module in method.lora.target: {module_name.rpartition('.')[2]}; an adapter of "
                "method.lora.start_from can be continued only without model.quantization",
            )


def quantising(
    linears: Iterable[nn.Linear], section: ModelSection, fill: Callable[[nn.Module], None], device: torch.device
) -> Callable[[nn.Module], None]:
    """`fill`, which reads the weights of a module and its submodules, extended by quantising those of `linears`.

    They are quantised one by one on `device`: only one of them is in memory unquantised.
    """
    unquantised = set(linears)

    def fill_quantised(module: nn.Module) -> None:
        for each in module.modules():
            if each in unquantised:
                assert isinstance(each, nn.Linear)
                unquantised.remove(each)
                fill(each)
                become_quantised(each, section, device)
        fill(module)

    return fill_quantised


def become_quantised(linear: nn.Linear, section: ModelSection, device: torch.device) -> None:
    """Replace the weight of `linear` by its quantised form, computed on `device`."""
    weight, double = linear.weight.detach(), section.double_quantization
    if weight.is_meta:
        parts = without_content(tuple(weight.shape), double=double)
    else:
        parts = quantise(weight.to(device), double=double)
    del linear.weight
    linear.__class__ = Nf4Linear
    for name in _PARTS:
        # Not persistent: only adapters are exported, and checkpoints contain trained weights only.
        linear.register_buffer(name, getattr(parts, name), persistent=False)
    linear.dense_dtype = weight.dtype  # type: ignore[assignment]


def quantised_numbers(model: nn.Module) -> int:
    """Number of weights in the quantised matrices of `model`, which are not parameters."""
    return sum(each.in_features * each.out_features for each in model.modules() if isinstance(each, Nf4Linear))
