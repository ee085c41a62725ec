"""Distributed data parallel: a whole model on every device, gradients averaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.optim import Optimizer

from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import GroupStrategy, MakeOptimizer, RootModule, broadcast
from ascendtune.train.strategy.gradient_buckets import GradientBuckets


class DdpStrategy(GroupStrategy):
    name = "ddp"

    def prepare(
        self, root: RootModule, precision: Precision, make_optimizer: MakeOptimizer
    ) -> tuple[nn.Module, Optimizer]:
        # Nodes may have read different files.
        for tensor in (*root.parameters(), *root.buffers()):
            broadcast(tensor.detach())
        rounds = self.recipe.parallel.reduce_dtype == "bf16"
        self._buckets = GradientBuckets(
            (each for each in root.parameters() if each.requires_grad), torch.bfloat16 if rounds else None
        )
        return root, make_optimizer()

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        return self._without_sums()

    @contextmanager
    def _without_sums(self) -> Iterator[None]:
        self._buckets.sums = False
        try:
            yield
        finally:
            self._buckets.sums = True

    def backward(self, module: nn.Module, loss: torch.Tensor) -> None:
        loss.backward()
        if self._buckets.sums:
            self._buckets.finish()
        else:
            self._buckets.collect()
