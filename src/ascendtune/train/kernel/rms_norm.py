"""Root mean square normalisation: x / sqrt(mean(x²) + ε) · w, or · (1 + w) in Gemma.

Zhang and Sennrich 2019, arXiv 1910.07467, eq. 4.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from ascendtune.train.kernel.fusable import FusableModule, Kernel, randn, takes_one_argument

_EPSILONS = ("variance_epsilon", "eps", "epsilon")


class FusableNorm(FusableModule):
    """Kernels are called with hidden (…, width), weight (width,), both of one dtype, and ε; they return (…, width)."""

    def __init__(self, module: nn.Module, epsilon: float, *, one_plus: bool, keeps_type: bool) -> None:
        super().__init__(module)
        self.epsilon = epsilon
        self.one_plus = one_plus
        """Whether the factor is 1 + weight."""
        self.keeps_type = keeps_type
        """Whether the result has the input's dtype, whatever the weight's."""

    @property
    def key(self) -> Hashable:
        weight = self.module.weight
        return type(self.module), tuple(weight.shape), weight.dtype, self.epsilon, self.one_plus, self.keeps_type

    def forward_with(self, kernel: Kernel) -> Callable[..., Any]:
        epsilon, one_plus, keeps_type = self.epsilon, self.one_plus, self.keeps_type

        def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
            # 1 + weight needs fp32: weights are small, and bf16 would round them away.
            weight = 1.0 + self.weight.float() if one_plus else self.weight
            dtype = torch.promote_types(hidden_states.dtype, weight.dtype)
            output: torch.Tensor = kernel(hidden_states.to(dtype), weight.to(dtype), epsilon)
            return output.to(hidden_states.dtype) if keeps_type else output

        return forward

    def samples(self, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        # Random weights, in the dtype of the module's own: those are often all equal and would hide a permutation.
        weight = randn(tuple(self.module.weight.shape), device, self.module.weight.dtype, seed=2)
        return [(3 * randn((2, 7, len(weight)), device, dtype)).requires_grad_(), weight.requires_grad_()]

    def run(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, weight = samples
        return (functional_call(self.module, {"weight": weight}, (hidden,)),)


def find_rms_norms(model: nn.Module, device: torch.device) -> list[FusableModule]:
    """All modules of `model` that compute one of the two forms on `device`."""
    candidates = (_recognised(module, device) for module in model.modules())
    return [norm for norm in candidates if norm is not None]


def _recognised(module: nn.Module, device: torch.device) -> FusableModule | None:
    epsilon = next((value for name in _EPSILONS if isinstance(value := getattr(module, name, None), float)), None)
    parameters = dict(module.named_parameters())
    if epsilon is None or parameters.keys() != {"weight"} or module.weight.ndim != 1 or any(module.children()):
        return None
    if not takes_one_argument(module):
        return None
    assert isinstance(module.weight, torch.Tensor)
    width = len(module.weight)
    hidden, weight = randn((3, width), device, torch.float32), randn((width,), device, torch.float32, seed=1)
    with torch.no_grad():
        output = functional_call(module, {"weight": weight}, (hidden,))
        normed = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + epsilon)
        forms = [torch.allclose(output, normed * factor, rtol=1e-4, atol=1e-5) for factor in (weight, 1 + weight)]
        if not any(forms):
            return None
        narrow = functional_call(module, {"weight": weight}, (hidden.bfloat16(),))
    return FusableNorm(module, epsilon, one_plus=forms[1], keeps_type=narrow.dtype == torch.bfloat16)
