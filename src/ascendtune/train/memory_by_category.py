"""Device memory of a rank's weights, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def memory_by_category(weights: Iterable[torch.nn.Parameter], optimizer: Any) -> dict[str, int]:
    """Bytes of this rank's storages, each counted once in its category.

    Args:
        weights: of any shape and dtype.
        optimizer: its `state` maps parameter -> name -> value, as in torch's optimizers.
    """
    weights = list(weights)
    states = optimizer.state.values()
    return {
        "weights": _bytes(weights),
        "gradients": _bytes(each.grad for each in weights),
        "optimizer state": _bytes(value for state in states for value in state.values() if torch.is_tensor(value)),
    }


def _bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of the tensors' storages, on an accelerator or the host, each counted once."""
    sizes = {}
    for each in tensors:
        if each is not None:
            storage = (each._local_tensor if isinstance(each, DTensor) else each).untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
