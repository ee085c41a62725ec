"""A linear layer and its LoRA adapter as one autograd node: x·Wᵀ + bias + scale·(x·Aᵀ)·Bᵀ (Hu et al. 2021, eq. 3).

PEFT's layer allocates a tensor of the output's or the input's size for each operation, and under autocast casts x to
fp32 and back. Here the adapter's product is added to the base's output in place (`addmm_`), and in the backward pass to
the gradient of x. Numerical differences from PEFT's layer:

- x is not cast to fp32: the round trip is exact, so nothing changes.
- The sum and the scale are rounded once where PEFT rounds each: fp32 results agree to 1e-6, bf16 results are not
  further from exact ones.
- Dropout is PEFT's module, on the same shape and dtype, so it draws the same random numbers.

A quantised base is dequantised inside the node, forward and backward, and never stored.

Parameters, their names, files and everything but `forward` are PEFT's. PEFT's `forward` is used if it does more: DoRA,
several active adapters, merged or disabled ones, a trained base, weights of several dtypes without autocast. It is also
used if a part (`base_layer`, `lora_A`, `lora_B`) has hooks, which run only when the part is called: dumps and DeepSpeed
ZeRO-3 register them.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import nn
from torch.autograd.function import once_differentiable

from ascendtune.train.precision import cast_weight
from ascendtune.train.tuner.nf4 import Nf4, dequantise
from ascendtune.train.tuner.quantised_linear import Nf4Linear


class FusedLoraLinear(Linear):  # type: ignore[misc]  # PEFT has no types
    """PEFT's layer, computed as one node if the result is the same."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the output of base and adapter.

        Args:
            x: (..., inputs), of any floating dtype.

        Returns:
            (..., outputs), in autocast's dtype, or in that of x without autocast.
        """
        adapter = None if args or kwargs else self._adapter()
        if adapter is None:
            return super().forward(x, *args, **kwargs)  # type: ignore[no-any-return]
        base, a, b = self.base_layer, self.lora_A[adapter].weight, self.lora_B[adapter].weight
        # Quantised weights can be dequantised to any dtype.
        quantised = base.nf4 if isinstance(base, Nf4Linear) else None
        dtype = _common_dtype(x, a, b) if quantised else _common_dtype(x, base.weight, a, b)
        if dtype is None:
            return super().forward(x)  # type: ignore[no-any-return]
        dropout: Any = self.lora_dropout[adapter]
        dropped = None
        if self.training and isinstance(dropout, nn.Dropout):
            dropped = dropout(self._cast_input_dtype(x, a.dtype)).to(dtype)
        bias = None if base.bias is None else base.bias.to(dtype)
        a_cast, b_cast = cast_weight(a, dtype).detach(), cast_weight(b, dtype).detach()
        weight = quantised or (base.weight.to(dtype), None, None, None)
        output, _ = _LinearWithAdapter.apply(  # type: ignore[no-untyped-call]
            x.to(dtype), dropped, *weight, bias, a, b, a_cast, b_cast, self.scaling[adapter]
        )
        return output  # type: ignore[no-any-return]

    def _adapter(self) -> str | None:
        """The only active adapter; None if PEFT's `forward` is needed, whatever the input."""
        if self.disable_adapters or self.merged:
            return None
        active = [each for each in self.active_adapters if each in self.lora_A]
        if len(active) != 1 or active[0] in self.lora_variant or self.lora_bias[active[0]]:
            return None
        parts = self.base_layer, self.lora_A[active[0]], self.lora_B[active[0]]
        has_hooks = any(each._forward_hooks or each._forward_pre_hooks or each._backward_hooks for each in parts)
        trains = any(each.requires_grad for each in self.base_layer.parameters())
        return None if has_hooks or trains else str(active[0])


def _common_dtype(x: torch.Tensor, *weights: torch.Tensor) -> torch.dtype | None:
    """The dtype in which all products of these tensors are computed; None if they differ."""
    if any(each.dtype == torch.float64 for each in (x, *weights)) or not torch.is_autocast_enabled(x.device.type):
        return x.dtype if all(each.dtype == x.dtype for each in weights) else None
    return torch.get_autocast_dtype(x.device.type)


class _LinearWithAdapter(torch.autograd.Function):
    """x (..., inputs), W (outputs, inputs), A (rank, inputs), B (outputs, rank); one dtype for all except A and B.

    A and B are arguments for their gradients; `a_cast` and `b_cast` are their values in the common dtype. `weight` is W
    or, with `scales`, `outer` and `shape`, the fields of an `Nf4`.
    """

    @staticmethod
    def forward(
        x: torch.Tensor, dropped: torch.Tensor | None, weight: torch.Tensor, scales: torch.Tensor | None,
        outer: torch.Tensor | None, shape: tuple[int, ...] | None, bias: torch.Tensor | None,
        a: torch.Tensor, b: torch.Tensor, a_cast: torch.Tensor, b_cast: torch.Tensor, scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """The output (..., outputs), and x·Aᵀ (rows, rank) for the backward pass."""
        low = _rows(x if dropped is None else dropped) @ a_cast.T
        output = nn.functional.linear(_rows(x), _dense(weight, scales, outer, shape, x.dtype), bias)
        output.addmm_(low, b_cast.T, alpha=scale)
        # `view` is not used: some models change a linear layer's output in place, which a view of a node does not
        # allow.
        return torch.ops.aten._unsafe_view(output, [*x.shape[:-1], len(b_cast)]), low

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, dropped, weight, scales, outer, shape, _bias, a, b, a_cast, b_cast, scale = inputs
        _, low = output
        ctx.mark_non_differentiable(low)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x if dropped is None else dropped, weight, scales, outer, a_cast, b_cast, low)
        ctx.has_dropout, ctx.scale, ctx.types, ctx.shape = dropped is not None, scale, (a.dtype, b.dtype), shape

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: None) -> tuple[torch.Tensor | None, ...]:
        adapted, weight, scales, outer, a_cast, b_cast, low = ctx.saved_tensors
        rows, scale = _rows(gradient), ctx.scale
        needs_x, needs_dropped, _, _, _, _, _, needs_a, needs_b, *_ = ctx.needs_input_grad
        of_x = of_dropped = of_a = of_b = None
        of_low = (rows @ b_cast).mul_(scale)
        if needs_x:
            of_x = rows @ _dense(weight, scales, outer, ctx.shape, gradient.dtype)
            if not ctx.has_dropout:
                of_x.addmm_(of_low, a_cast)
            of_x = of_x.view(*gradient.shape[:-1], a_cast.shape[1])
        if needs_dropped:
            of_dropped = (of_low @ a_cast).view(*gradient.shape[:-1], a_cast.shape[1])
        if needs_a:
            of_a = (of_low.T @ _rows(adapted)).to(ctx.types[0])
        if needs_b:
            of_b = (rows.T @ low).to(ctx.types[1]).mul_(scale)
        return of_x, of_dropped, None, None, None, None, None, of_a, of_b, None, None, None


def _dense(
    weight: torch.Tensor, scales: torch.Tensor | None, outer: torch.Tensor | None, shape: tuple[int, ...] | None,
    dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """`weight`, dequantised if it is quantised: (outputs, inputs)."""
    if scales is None or shape is None:
        return weight
    return dequantise(Nf4(weight, scales, outer, shape), dtype)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def fuse_adapters(tuned: nn.Module) -> None:
    """Make PEFT's layers around plain linear layers in `tuned` compute as one node; weights and names stay."""
    layers: list[Any] = [each for each in tuned.modules() if type(each) is Linear]
    for module in layers:
        if type(module.get_base_layer()) is nn.Linear:
            module.__class__ = FusedLoraLinear
