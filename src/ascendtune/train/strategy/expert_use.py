"""Experts that ranks of FSDP do not use in a step: their gradients are summed as zeros, then removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ascendtune.core.errors import RecipeError


class ExpertUses:
    """Records the use of experts that are modules in a list: FSDP gives unused ones gradients of zeros.

    With zeros the optimizer would apply weight decay and the momentum of earlier steps. On one device unused experts
    have no gradient, and do not change.

    Args:
        experts: experts in modules that `fully_shard` has sharded.
    """

    def __init__(self, experts: Iterable[nn.Module]) -> None:
        self.called = set[nn.Module]()
        """Experts that this rank has called with gradients since the last `forget_zeros`."""
        self.trained = {each: expert for expert in experts for each in expert.parameters() if each.requires_grad}
        for expert in dict.fromkeys(self.trained.values()):
            expert.register_forward_pre_hook(self._note)

    def _note(self, expert: nn.Module, _: Any) -> None:
        if torch.is_grad_enabled():
            self.called.add(expert)

    def forget_zeros(self, sum_over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Remove the gradients of experts that no rank has used. Every rank must call this, once a step."""
        gradients = [each.grad.to_local() for each in self.trained if isinstance(each.grad, DTensor)]
        # Sums of absolute values: squares of small numbers would be 0. On one device gradients are also 0 if an expert
        # gets only tokens without a label. And a model may use a weight of an expert without calling it.
        uses = torch.stack(torch._foreach_norm(gradients, 1, torch.float32))
        uses += torch.tensor([float(expert in self.called) for expert in self.trained.values()]).to(uses)
        for parameter, use in zip(self.trained, sum_over_ranks(uses).tolist(), strict=True):
            if use == 0:
                parameter.grad = None
        self.called.clear()


def give_zeros_to_unused(root: Any, *, is_needed: bool) -> None:
    """Make trained weights of a mixture that this rank has not used have a gradient of zeros.

    Without it ranks would sum tensors of different sizes if one of them uses no expert of a list, or bypasses the
    experts in one tensor with all tokens (LongCat's router may).

    Args:
        root: sharded by `fully_shard`.
        is_needed: whether ranks use different weights in most steps.

    Raises:
        RecipeError: this torch does not support it, and it is needed.
    """
    if hasattr(root, "set_reduce_scatter_unused_params"):
        root.set_reduce_scatter_unused_params(True)
    elif is_needed:
        raise RecipeError(
            "the experts of this model are modules in a list, and ranks may use different ones: fsdp of torch "
            f"{torch.__version__} cannot sum their gradients",
            code="experts-not-divisible",
            remedy="use parallel.strategy: ddp, or torch 2.13",
        )
