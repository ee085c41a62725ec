"""Shared state of the micro-batches of a step: casts of weights, and the memory of gradients under DDP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.parallel import ParallelSection
from ascendtune.train.objective.log_probs import linear_log_probs
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import RootModule, Strategy
from ascendtune.train.strategy.ddp import DdpStrategy
from ascendtune.train.tuner.lora_linear import FusedLoraLinear

BF16 = Precision("bf16", "fp32", "as asked", "cpu")


class Casts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.of_weights = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if function is torch.ops.aten._to_copy.default and named.get("dtype") is torch.bfloat16:
            self.of_weights += isinstance(args[0], nn.Parameter)
        return function(*args, **named)


class TwoLayers(nn.Module):
    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 5, bias=False), nn.Linear(5, 3, bias=False)
        self._recomputes = recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._recomputes:
            hidden: torch.Tensor = checkpoint(self.first, x, use_reentrant=False)
        else:
            hidden = self.first(x)
        output: torch.Tensor = self.second(hidden.tanh())
        return output


class HeadAndAdapter(nn.Module):
    """Weights that operators of our own cast: a LoRA adapter over frozen bf16 weights, and the head of a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.Linear(6, 5, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.first = FusedLoraLinear(layer, "default", LoraConfig(), r=2)
        nn.init.normal_(self.first.lora_B["default"].weight)
        for part in (self.first.lora_A, self.first.lora_B):
            part.float()
        self.head = nn.Linear(5, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        labels = torch.arange(len(x)) % 3
        return linear_log_probs(self.first(x.bfloat16()).tanh(), self.head, labels)


def accumulated(model: nn.Module, *, shared: bool, micro_batches: int = 3) -> tuple[list[torch.Tensor], int]:
    """Gradients of a step of some micro-batches, and casts of weights."""
    generator = torch.Generator().manual_seed(1)
    with Casts() as casts, BF16.shared_casts() if shared else nullcontext():
        for _ in range(micro_batches):
            with BF16.autocast():
                loss = model(torch.randn(4, 6, generator=generator)).float().square().sum()
            loss.backward()
    return [each.grad for each in model.parameters() if each.grad is not None], casts.of_weights


@pytest.mark.parametrize("recomputes", [False, True])
def test_weights_are_cast_once_a_step_and_gradients_are_the_same(recomputes: bool) -> None:
    apart, many = accumulated(TwoLayers(recomputes=recomputes), shared=False)
    together, few = accumulated(TwoLayers(recomputes=recomputes), shared=True)
    assert (many, few) == (9 if recomputes else 6, 2)
    for expected, found in zip(apart, together, strict=True):
        assert torch.equal(expected, found)


def test_operators_of_our_own_cast_their_weights_once_a_step_too() -> None:
    apart, many = accumulated(HeadAndAdapter(), shared=False)
    together, few = accumulated(HeadAndAdapter(), shared=True)
    assert (many, few) == (9, 3)
    assert len(together) == 3
    for expected, found in zip(apart, together, strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("kind", [TwoLayers, HeadAndAdapter])
def test_next_step_casts_the_new_weights(kind: Callable[[], nn.Module]) -> None:
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    for _ in range(2):
        accumulated(model, shared=True)
        optimizer.step()
        optimizer.zero_grad()
        with BF16.autocast():
            outputs.append(model(torch.ones(1, 6)).detach())
    assert not torch.equal(*outputs)


@pytest.mark.parametrize(("micro_batches", "expected"), [(1, False), (2, True)])
def test_casts_are_shared_where_there_are_several_micro_batches(micro_batches: int, expected: bool) -> None:
    strategy = Strategy(find_device())
    assert strategy.shares_casts(micro_batches) == expected
    strategy.shards_weights = True
    assert not strategy.shares_casts(micro_batches)


@pytest.fixture
def ddp() -> Iterator[DdpStrategy]:
    recipe: Any = SimpleNamespace(batch=SimpleNamespace(accumulate=2), parallel=ParallelSection(strategy="ddp"))
    strategy = DdpStrategy(find_device(), recipe)
    yield strategy
    strategy.close()


def test_gradients_of_ddp_stay_in_its_buckets(ddp: DdpStrategy) -> None:
    """From the second step on no micro-batch has gradients beside the buckets, and they are those of one process."""
    plain, root = TwoLayers(), RootModule(TwoLayers())
    module, optimizer = ddp.prepare(root, BF16, lambda: torch.optim.SGD(root.parameters(), lr=0.1))
    alone = torch.optim.SGD(plain.parameters(), lr=0.1)
    places = set()
    for step in range(3):
        for number in range(2):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + number))
            with ddp.no_sync(module) if number == 0 else nullcontext():
                ddp.backward(module, module(root.model, x).square().sum())
            plain(x).square().sum().backward()
            if step:
                places.add(tuple(each.grad.data_ptr() for each in root.parameters()))  # type: ignore[union-attr]
        for ours, theirs in zip(root.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-7)
        optimizer.step()
        optimizer.zero_grad()
        alone.step()
        alone.zero_grad()
    assert len(places) == 1
