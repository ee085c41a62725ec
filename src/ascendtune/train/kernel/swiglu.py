"""Gated MLPs: down(silu(gate(x)) · up(x)), with gate and up as two projections or as one.

Shazeer 2020, arXiv 2002.05202, eq. 6 (FFN_SwiGLU).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import silu

from ascendtune.train.kernel.fusable import FusableModule, Kernel, randn, takes_one_argument


class FusableMlp(FusableModule):
    """Kernels are called with gate and up, both (…, width), and return silu(gate) · up."""

    def forward_with(self, kernel: Kernel) -> Callable[..., Any]:
        if hasattr(self.module, "gate_up_proj"):

            def forward(self: Any, x: torch.Tensor) -> Any:
                return self.down_proj(kernel(*self.gate_up_proj(x).chunk(2, dim=-1)))
        else:

            def forward(self: Any, x: torch.Tensor) -> Any:
                return self.down_proj(kernel(self.gate_proj(x), self.up_proj(x)))

        return forward

    def samples(self, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        # Without autocast a matrix product needs the dtype of its weights.
        own = next(self.module.parameters()).dtype
        sample_dtype = dtype if torch.is_autocast_enabled(device.type) else own
        return [randn((2, 7, _width(self.module)), device, sample_dtype).requires_grad_()]

    def run(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (functional_call(self.module, _weights_on(samples[0].device, self.module), samples),)


def find_mlps(model: nn.Module, device: torch.device) -> list[FusableModule]:
    """All modules of `model` that compute this form on `device`."""
    return [FusableMlp(module) for module in model.modules() if _is_gated(module, device)]


def _is_gated(module: nn.Module, device: torch.device) -> bool:
    children = dict(module.named_children())
    projections = {"gate_up_proj", "down_proj"} if "gate_up_proj" in children else {"gate_proj", "up_proj", "down_proj"}
    if not projections <= children.keys() or not takes_one_argument(module) or _width(module) == 0:
        return False
    if any(isinstance(each, nn.Dropout) and each.p > 0 for each in children.values()):
        return False
    was_training = module.training
    module.eval()
    mlp, x = FusableMlp(module), randn((3, _width(module)), device, next(module.parameters()).dtype)
    with torch.no_grad():
        (result,) = mlp.run(x)
        mlp.replace_forward(lambda gate, up: silu(gate) * up)
        (expected,) = mlp.run(x)
        mlp.restore_forward()
    module.train(was_training)
    scale = float(expected.abs().max())
    return isinstance(result, torch.Tensor) and torch.allclose(result, expected, rtol=1e-2, atol=1e-2 * scale)


def _weights_on(device: torch.device, module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's weights on `device`: strategies that shard leave them on the host until then."""
    return {name: weight.to(device) for name, weight in module.named_parameters()}


def _width(module: nn.Module) -> int:
    """Width of the input; 0 if the projections are not linear layers."""
    first = getattr(module, "gate_up_proj", None) or getattr(module, "gate_proj", None)
    return int(getattr(first, "in_features", 0))
