"""Distributed data parallel: a whole model on every device, gradients averaged."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

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
        return module, make_optimizer()

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        assert isinstance(module, DistributedDataParallel)
        return module.no_sync()
