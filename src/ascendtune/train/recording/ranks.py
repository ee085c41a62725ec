"""The ranks of a recorded loop, and a gather of their numbers."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist


def rank() -> int:
    """Rank of this process; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(values: list[Any], *, dtype: torch.dtype, device: torch.device) -> list[list[Any]]:
    """The numbers of all ranks, ordered by rank. Each rank must pass the same number of them."""
    if world_size() == 1:
        return [values]
    own = torch.tensor(values, dtype=dtype, device=device)
    parts = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(parts, own)
    _wait_for_release([own, *parts])
    return [each.tolist() for each in parts]


def _wait_for_release(tensors: list[torch.Tensor]) -> None:
    """Wait at most a second until the process group has released `tensors` on the host, of any shape.

    Gloo's thread releases them after the operation is complete, and takes the interpreter's lock for it. If the group
    is destroyed meanwhile by DDP's destructor, which holds the lock, it would wait for that thread forever (torch
    2.13).
    """
    until = time.monotonic() + 1
    counted: Any = [each for each in tensors if each.is_cpu]
    while any(each._use_count() > 1 for each in counted) and time.monotonic() < until:
        time.sleep(0.001)
