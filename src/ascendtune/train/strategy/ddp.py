"""Distributed data parallel: a whole model on every device, gradients averaged."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import GroupStrategy, MakeOptimizer, RootModule


class DdpStrategy(GroupStrategy):
    name = "ddp"

    def prepare(
        self, root: RootModule, precision: Precision, make_optimizer: MakeOptimizer
    ) -> tuple[nn.Module, Optimizer]:
        ids = None if self.device.shares_host_memory else [self.device.index]
        # Buffers (rotary frequencies) never change, so nothing is sent for them. torch 2.13 renamed the argument.
        renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
        options: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        # Gradients stay views of DDP's buckets. Where they were given back, those of the first micro-batches would lie
        # beside the buckets until the last one.
        self.keeps_gradients = self.recipe.batch.accumulate > 1
        module = DistributedDataParallel(root, device_ids=ids, gradient_as_bucket_view=True, **options)
        if self.recipe.parallel.reduce_dtype == "bf16":
            # A lambda, because torch compares annotations, and here they are strings.
            module.register_comm_hook(None, lambda _, bucket: _all_reduce_in_bf16(bucket))
        return module, make_optimizer()

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        assert isinstance(module, DistributedDataParallel)
        return module.no_sync()


def _all_reduce_in_bf16(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean over ranks of a bucket's gradients, (numbers,), each rounded to bf16 before it is sent.

    DDP takes torch's own hook of this kind with NCCL and XCCL only.
    """
    gradients = bucket.buffer()
    sent = gradients.bfloat16().div_(dist.get_world_size())
    summed: torch.futures.Future[list[torch.Tensor]] = dist.all_reduce(sent, async_op=True).get_future()
    return summed.then(lambda done: gradients.copy_(done.value()[0]))
