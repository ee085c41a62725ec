"""What a rank's weights, gradients and optimizer state take on its device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def held_by_category(weights: Iterable[torch.nn.Parameter], optimizer: Any) -> dict[str, int]:
    """Bytes of the storages of this rank, each once in its category.

    Args:
        weights: of any shape and dtype.
        optimizer: its `state` is parameter -> name -> value, as that of torch's optimizers.
    """
    weights = list(weights)
    states = optimizer.state.values()
    return {
        "weights": _bytes(weights),
        "gradients": _bytes(each.grad for each in weights),
        "optimizer state": _bytes(value for state in states for value in state.values() if torch.is_tensor(value)),
    }


def _bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Of storages on an accelerator or the host, each once."""
    found = {}
    for each in tensors:
        if each is not None:
            storage = (each._local_tensor if isinstance(each, DTensor) else each).untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return sum(found.values())
