"""Several processes in a process group: the base of all strategies but `single`."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from ascendtune.machine.peers import init_method, require_own_peers
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.object_collectives import refuse_foreign_pickles
from ascendtune.train.strategy.base import Strategy, stack

# Long enough for the first step on a slow file system, short enough that a lost rank is noticed today.
_TIMEOUT = timedelta(minutes=30)


class GroupStrategy(Strategy):
    """Joins the process group that torchrun's variables describe; without them, a group of one."""

    def __init__(self, device: Device, recipe: Recipe, reason: str = "as asked") -> None:
        super().__init__(device, reason)
        self.recipe = recipe
        backend = device.collective_backend
        # Gloo beside the device's own backend: checkpoints and stop signals talk from the host.
        both = backend if backend == "gloo" else f"cpu:gloo,{device.kind}:{backend}"
        bound = device.torch_device if device.binds_process_group else None
        refuse_foreign_pickles()
        if started_by_torchrun():
            dist.init_process_group(
                both,
                init_method=init_method(),
                rank=int(os.environ["RANK"]),
                world_size=world_size(),
                timeout=_TIMEOUT,
                device_id=bound,
            )
            require_own_peers()
        else:
            dist.init_process_group(both, store=dist.HashStore(), rank=0, world_size=1, device_id=bound)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def gather(self, text: str) -> list[str]:
        texts: list[str | None] = [None] * self.world_size
        dist.all_gather_object(texts, text)
        return [each or "" for each in texts]

    def sum(self, values: list[torch.Tensor | float]) -> list[float]:
        stacked = stack(values, self.device)
        dist.all_reduce(stacked)
        return stacked.tolist()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        dist.barrier()

    def gradient_scale(self) -> float:
        # The ranks' gradients are averaged; the loss is divided by the global token count, so that average must become
        # a sum.
        return float(self.world_size)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def started_by_torchrun() -> bool:
    """Whether torchrun's variables describe more than one rank."""
    return world_size() > 1


def world_size() -> int:
    """How many ranks torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))
