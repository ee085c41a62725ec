"""Which experts of a list the ranks have used in a step: the others have no gradient, as on one device.

FSDP gives weights that a rank has not used a gradient of zeros. With zeros AdamW would decay such a weight, and go on
with its moments; without a gradient it leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn


class ExpertUse:
    """Notes calls of experts by forward hooks, from one update to the next.

    Args:
        experts: modules, in the order that all ranks have.
        all_reduce: sums a tensor of the device over ranks, in place.
    """

    def __init__(self, experts: Sequence[nn.Module], all_reduce: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._experts = experts
        self._all_reduce = all_reduce
        self._used: set[int] = set()
        for number, expert in enumerate(experts):
            expert.register_forward_pre_hook(partial(self._note, number))

    def _note(self, number: int, _expert: nn.Module, _inputs: Any) -> None:
        if torch.is_grad_enabled():
            self._used.add(number)

    def drop_unused(self, device: torch.device) -> None:
        """Remove the gradients of experts that no rank has used. Every rank must call it, after its last backward."""
        flags = torch.zeros(len(self._experts), device=device)
        flags[sorted(self._used)] = 1.0
        self._used.clear()
        for expert, uses in zip(self._experts, self._all_reduce(flags).tolist(), strict=True):
            if not uses:
                for parameter in expert.parameters():
                    parameter.grad = None
