"""The strategies of a step that is traced without memory, on one rank of a group that sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import OffloadPolicy

from ascendtune.train.plan.training_choices import TrainingChoices
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import MakeOptimizer, RootModule, Strategy
from ascendtune.train.strategy.fsdp import FsdpStrategy


class _Single(Strategy):
    def __init__(self, setting: TrainingChoices) -> None:
        super().__init__(setting.device)


class _Ddp(_Single):
    """Gradients end up in permanent buckets, as in `DdpStrategy`."""

    def prepare(
        self, root: RootModule, precision: Precision, make_optimizer: MakeOptimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        self.buckets: dict[torch.Tensor, torch.Tensor] = {
            weight: torch.empty_like(weight) for weight in root.parameters() if weight.requires_grad
        }
        for weight in self.buckets:
            weight.register_post_accumulate_grad_hook(self._into_bucket)
        return root, make_optimizer()

    def _into_bucket(self, weight: torch.Tensor) -> None:
        assert weight.grad is not None
        if weight.grad is not (bucket := self.buckets[weight]):
            weight.grad = bucket.copy_(weight.grad)


def gradient_of(strategy: Strategy, weight: nn.Parameter) -> torch.Tensor:
    """Memory for the gradient of `weight`, any shape: a part of a bucket, or a new tensor."""
    return strategy.buckets[weight] if isinstance(strategy, _Ddp) else torch.empty_like(weight)


class _Fsdp(FsdpStrategy):
    def __init__(self, setting: TrainingChoices) -> None:
        Strategy.__init__(self, setting.device)
        self.recipe, self.world_size, self.shards = setting.recipe, setting.ranks, setting.shards

    def agree(self, answer: bool) -> bool:
        return answer

    def _make_mesh(self) -> DeviceMesh:
        # Creating the mesh reads the content of a tensor of ranks.
        with unset_fake_temporarily():
            return super()._make_mesh()

    def _offload_policy(self) -> OffloadPolicy:
        # Offloaded memory is separated afterwards: here all memory is the CPU's.
        return OffloadPolicy()


STRATEGIES: dict[str, Callable[[TrainingChoices], Strategy]] = {"single": _Single, "ddp": _Ddp, "fsdp": _Fsdp}


@contextmanager
def fake_group(ranks: int | None) -> Iterator[None]:
    """A process group of `ranks` whose collectives move nothing; no group for None."""
    if ranks is None:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
