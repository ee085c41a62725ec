"""Models of accelerators' fused operators by the tensors that they keep, for FakeTensors only: they compute nothing.

What is kept for the backward pass follows the operators' documentation:

    attention   query, key and value as (tokens, heads, head_dim), the result, and per head and token one fp32 number
                (the logsumexp of FlashAttention-2, Dao 2023, arXiv 2307.08691) or, on Ascend, twice eight of them
                (softmax_max and softmax_sum of npu_fusion_attention)
    RMSNorm     its input, the weight and one fp32 number per row (npu_rms_norm's rstd, Liger's RSTD)
    SwiGLU      gate and up, side by side for npu_swiglu; Liger's overwrites them with their gradients
    rotary      Liger's rotates copies of query and key, and keeps none
    experts     rows and weights of a grouped product, the weights in autocast's dtype, and each expert's row count
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from ascendtune.recipe.sections import KernelSection
from ascendtune.train.kernel.adapted_experts import find_adapted_experts
from ascendtune.train.kernel.experts import stacked_experts
from ascendtune.train.kernel.fusable import Kernel
from ascendtune.train.kernel.rms_norm import find_rms_norms
from ascendtune.train.kernel.rotary import find_rotary
from ascendtune.train.kernel.swiglu import FusableMlp
from ascendtune.train.precision import in_autocast_type

_ACTIVATIONS = ("SiLU", "SiLUActivation")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, numbers: int) -> torch.Tensor:
        """(tokens, heads, head_dim) each; returns (tokens, heads of `query`, head_dim of `value`)."""
        output = value.new_empty((*query.shape[:2], value.shape[-1]))
        ctx.save_for_backward(query, key, value, output, query.new_empty((*query.shape[:2], numbers)).float())
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        query, key, value, *_ = ctx.saved_tensors
        gradient.contiguous()
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


def modelled_attention(numbers: int, *, pads_values: bool = False) -> Any:
    """An attention function for `attention.interface` that keeps `numbers` fp32 numbers per head and token.

    Args:
        pads_values: whether values that are narrower than keys get columns of zeros.
    """

    def attention(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **_: Any
    ) -> tuple[torch.Tensor, None]:
        # Some models pass the mask by its name.
        batch, heads, tokens, width = query.shape
        of_values = value.shape[-1]
        query, key, value = in_autocast_type(query, key, value)
        if pads_values and of_values < width:
            value = nn.functional.pad(value, (0, width - of_values))
        flat = (each.transpose(1, 2).flatten(0, 1).contiguous() for each in (query, key, value))
        output: torch.Tensor = _Attention.apply(*flat, numbers)  # type: ignore[no-untyped-call]
        return output[..., :of_values].reshape(batch, tokens, heads, -1), None

    return attention


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight, hidden.new_empty(hidden.shape[:-1]).float())
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, weight, _ = ctx.saved_tensors
        return torch.empty_like(hidden), torch.empty_like(weight)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(both)
        return both.new_empty((*both.shape[:-1], both.shape[-1] // 2))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(*ctx.saved_tensors)


class _SwiGluInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(ctx.saved_tensors)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return query.clone(), key.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(each.transpose(1, 2).contiguous().transpose(1, 2) for each in gradients)


class _GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        rows = rows.contiguous()
        of_rows, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(rows if of_weight else None, weight if of_rows else None, counts)
        ctx.shapes = rows.shape, weight.shape
        return rows.new_empty((len(rows), weight.shape[-1]))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        gradients = [
            gradient.new_empty(shape) if needed else None
            for shape, needed in zip(ctx.shapes, ctx.needs_input_grad, strict=False)
        ]
        return gradients[0], gradients[1], None


def _rms_norm(hidden: torch.Tensor, weight: torch.Tensor, _epsilon: float) -> Any:
    return _RmsNorm.apply(hidden, weight)  # type: ignore[no-untyped-call]


def _npu_swiglu(gate: torch.Tensor, up: torch.Tensor) -> Any:
    return _SwiGlu.apply(torch.cat((gate, up), dim=-1))  # type: ignore[no-untyped-call]


def _liger_silu_mul(gate: torch.Tensor, up: torch.Tensor) -> Any:
    return _SwiGluInPlace.apply(gate, up)  # type: ignore[no-untyped-call]


def _liger_rope(query: torch.Tensor, key: torch.Tensor, *_: torch.Tensor) -> Any:
    return _Rotary.apply(query, key)  # type: ignore[no-untyped-call]


def _grouped_product(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> Any:
    return _GroupedProduct.apply(rows, weight, counts)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Modelled:
    """Models of a device's operators; None: the model's own forward is traced. All devices have the experts' one."""

    rms_norm: Kernel
    swiglu: Kernel
    rotary: Kernel | None = None


_OPERATORS = {
    "npu": _Modelled(_rms_norm, _npu_swiglu),
    "liger": _Modelled(_rms_norm, _liger_silu_mul, _liger_rope),
}
"""Models of operators, by `Device.kernels`."""


def install_modelled_kernels(model: nn.Module, choice: Literal["auto", "off"] | KernelSection, kernels: str) -> None:
    """Install models of the operators `kernels` that the recipe allows in `model`, which is on the meta device.

    Args:
        kernels: value of `Device.kernels`; without a model for it nothing is installed.
    """
    if choice == "off" or kernels not in _OPERATORS:
        return
    allowed = KernelSection() if choice == "auto" else choice
    modelled = _OPERATORS[kernels]
    for norm in find_rms_norms(model, torch.device("cpu")) if allowed.rms_norm else ():
        norm.replace_forward(modelled.rms_norm)
    if allowed.rotary and modelled.rotary is not None:
        for attention in find_rotary(model, torch.device("cpu")):
            attention.replace_forward(modelled.rotary)
    for experts in stacked_experts(model) if allowed.experts else ():
        experts.replace_forward(_grouped_product)
    for adapted in find_adapted_experts(model):
        adapted.replace_forward(_grouped_product)
    for module in model.modules() if allowed.swiglu else ():
        parts = dict(module.named_children())
        gated = "down_proj" in parts and ("gate_up_proj" in parts or {"gate_proj", "up_proj"} <= parts.keys())
        if gated and type(parts.get("act_fn")).__name__ in _ACTIVATIONS:
            FusableMlp(module).replace_forward(modelled.swiglu)
