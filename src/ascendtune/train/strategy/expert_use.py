"""Which experts of a list the ranks have used in a step: the others have no gradient, as on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor


class ExpertUses:
    """Which experts that are modules in a list a step uses: FSDP gives the others gradients of zeros.

    With these the optimizer would let their weights decay, and go on by the momentum of earlier steps. On one device
    they have no gradient, and stay as they are.

    Args:
        experts: inside of what `fully_shard` has divided.
    """

    def __init__(self, experts: Iterable[nn.Module]) -> None:
        self.called = set[nn.Module]()
        """By this rank, with gradients, since zeros were forgotten last."""
        self.trained = {each: expert for expert in experts for each in expert.parameters() if each.requires_grad}
        for expert in dict.fromkeys(self.trained.values()):
            expert.register_forward_pre_hook(self._note)

    def _note(self, expert: nn.Module, _: Any) -> None:
        if torch.is_grad_enabled():
            self.called.add(expert)

    def forget_zeros(self, sum_over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Leave weights of experts that no rank has used without a gradient. Every rank must call it, once a step."""
        gradients = [each.grad.to_local() for each in self.trained if isinstance(each.grad, DTensor)]
        # Sums of absolute values: squares of small numbers would be 0. On one device, too, they are 0 where only tokens
        # without a label go. And a model may use a weight of an expert that it does not call.
        uses = torch.stack(torch._foreach_norm(gradients, 1, torch.float32))
        uses += torch.tensor([float(expert in self.called) for expert in self.trained.values()]).to(uses)
        for parameter, use in zip(self.trained, sum_over_ranks(uses).tolist(), strict=True):
            if use == 0:
                parameter.grad = None
        self.called.clear()
