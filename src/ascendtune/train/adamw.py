"""AdamW whose large tensors a kernel of the device updates one by one; torch's fused operator updates the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ascendtune.recipe.sections import OptimSection

LARGE = 2**18
"""A tensor with at least this many numbers is updated by a kernel of its own: its memory traffic hides the launch."""


@dataclass(frozen=True)
class AdamWSettings:
    """Hyperparameters of one tensor in one step."""

    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float


AdamWUpdate = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, AdamWSettings], None
]
"""Updates a parameter and its moments in place.

    update(parameter, gradient, exp_avg, exp_avg_sq, step, factor, settings)

The first four have one shape, any, and are contiguous on the device, each fp32 or bf16. step, () fp32, is the number
of this update, from 1. The gradient is multiplied by factor, () fp32. Both are on the device.
"""


class LocalAdamW(torch.optim.AdamW):
    """torch's AdamW over this rank's shards of the weights. The state stays sharded like the weights.

    Each number is updated by itself, so no communication is needed. DTensor would determine how to shard each of five
    tensors of each weight, which takes the host several times as long as launching the update.
    """

    def _init_group(self, group: dict[str, Any], *lists: Any) -> bool:
        has_complex: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        for tensors in lists:
            # Up to torch 2.6 one of `lists` is an option, not a list of tensors.
            if isinstance(tensors, list):
                tensors[:] = map(_local, tensors)
        return has_complex


class KernelAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101). Its state has the form of torch's AdamW.

    Args:
        groups: from `parameter_groups`, each with its learning rate; all parameters are on one device.
        update: called for tensors of `LARGE` numbers or more.
    """

    def __init__(self, section: OptimSection, groups: list[dict[str, Any]], update: AdamWUpdate) -> None:
        super().__init__(groups, {})
        self._update = update
        self._factor = torch.ones((), device=groups[0]["params"][0].device)
        # The parameter groups are shared with this optimizer, which writes its defaults into them.
        self._others = LocalAdamW(
            self.param_groups, betas=(section.beta1, section.beta2), eps=section.epsilon, fused=True
        )

    def clip(self, limit: float, norm: torch.Tensor) -> None:
        """Clip the gradients to `limit` in the next step, without changing them; `norm`, () fp32, is their norm."""
        # The formula of torch.nn.utils.clip_grads_with_norm_.
        self._factor = (limit / (norm + 1e-6)).clamp(max=1.0)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # the loop never gives a closure
        """Make one step. Parameters without a gradient are left out."""
        large: list[tuple[dict[str, Any], nn.Parameter, torch.Tensor]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is not None and _is_large(parameter, gradient):
                    large.append((group, parameter, gradient))
                    parameter.grad = None
        if large:
            # One operator for all counters.
            torch._foreach_add_([self._state_of(parameter)["step"] for _, parameter, _ in large], 1)
        for each in large:
            self._update_alone(*each)
        self._update_others()
        for _, parameter, gradient in large:
            parameter.grad = gradient

    def _state_of(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def _update_alone(self, group: dict[str, Any], parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        state = self.state[parameter]
        beta1, beta2 = group["betas"]
        settings = AdamWSettings(group["lr"], group["weight_decay"], beta1, beta2, group["eps"])
        mean, square = _local(state["exp_avg"]), _local(state["exp_avg_sq"])
        self._update(_local(parameter), _local(gradient), mean, square, state["step"], self._factor, settings)

    def _update_others(self) -> None:
        # Loading a checkpoint replaces the groups and the state.
        self._others.param_groups, self._others.state = self.param_groups, self.state
        all_gradients = [each.grad for group in self.param_groups for each in group["params"]]
        if gradients := [_local(each) for each in all_gradients if each is not None]:
            torch._foreach_mul_(gradients, self._factor)
            self._others.step()


def _is_large(*tensors: torch.Tensor) -> bool:
    return all(
        each.numel() >= LARGE and each.dtype in (torch.float32, torch.bfloat16) and each.is_contiguous()
        for each in map(_local, tensors)
    )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of `tensor`, any shape."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
