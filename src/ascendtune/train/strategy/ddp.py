"""Distributed data parallel: a whole model on every device, gradients averaged."""

from __future__ import annotations

import inspect
import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ascendtune.machine.device import Device
from ascendtune.train.strategy.base import Strategy, stack

# Long enough for the first step on a slow file system, short enough that a lost rank is noticed today.
_TIMEOUT = timedelta(minutes=30)


class DdpStrategy(Strategy):
    """Joins the process group that torchrun's variables describe."""

    name = "ddp"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        backend = device.collective_backend
        # Gloo beside the device's own backend: checkpoints and stop signals talk from the host.
        both = backend if backend == "gloo" else f"cpu:gloo,{device.kind}:{backend}"
        bound = device.torch_device if device.binds_process_group else None
        dist.init_process_group(both, timeout=_TIMEOUT, device_id=bound)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def wrap(self, objective: nn.Module) -> nn.Module:
        ids = None if self.device.shares_host_memory else [self.device.index]
        # Buffers (rotary frequencies) never change, so nothing is sent for them. torch 2.13 renamed the argument.
        renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
        options: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        return DistributedDataParallel(objective, device_ids=ids, gradient_as_bucket_view=True, **options)

    def without_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def sum(self, values: list[torch.Tensor | float]) -> list[float]:
        stacked = stack(values, self.device)
        dist.all_reduce(stacked)
        return stacked.tolist()

    def barrier(self) -> None:
        dist.barrier()

    def gradient_scale(self) -> float:
        # DDP averages over ranks; the loss is divided by the global token count, so the average must become a sum.
        return float(self.world_size)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def started_by_torchrun() -> bool:
    """Whether torchrun's variables describe more than one rank."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
