"""Tensors that autograd saves go to the host; weights and buffers of the model stay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ascendtune.recipe.sections import ModelSection
from ascendtune.train.offloaded_activations import saving_all_but_weights
from ascendtune.train.tuner.quantised_linear import become_quantised


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.frozen = nn.Linear(4, 6), nn.Linear(6, 64), nn.Linear(64, 8).requires_grad_(False)
        self.register_buffer("scale", torch.linspace(1, 2, 4))
        become_quantised(self.frozen, ModelSection(path="m", quantization="nf4"), torch.device("cpu"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.frozen(self.second(self.first(x * self.scale)).tanh())
        return output


def gradients(model: Model, packed: list[torch.Tensor] | None) -> list[torch.Tensor]:
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    model.zero_grad()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        assert packed is not None
        packed.append(tensor)
        return tensor.clone()

    if packed is None:
        model(x).square().sum().backward()
    else:
        with saving_all_but_weights(model, pack, lambda saved: saved):
            loss = model(x).square().sum()
        loss.backward()
    assert x.grad is not None
    return [x.grad, *(each.grad for each in model.parameters() if each.grad is not None)]


def test_weights_and_buffers_stay_and_gradients_are_the_same() -> None:
    torch.manual_seed(0)
    model, packed = Model(), list[torch.Tensor]()
    offloaded, plain = gradients(model, packed), gradients(model, None)
    assert len(plain) == 5 and all(torch.equal(one, other) for one, other in zip(offloaded, plain, strict=True))
    assert {tuple(each.shape) for each in packed} == {(3, 4), (3, 6), (3, 64), (3, 8)}


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_gathered_weights_stay_and_are_gathered_again() -> None:
    """A rank's share of the host would otherwise hold all weights of the model."""
    torch.manual_seed(0)
    blocks, packed = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)], list[torch.Size]()
    blocks[1].requires_grad_(False)
    model = nn.Sequential(*blocks)
    x = torch.linspace(-1, 1, 20).view(5, 4)
    model(x).square().sum().backward()
    expected = [each.grad for each in model.parameters() if each.grad is not None]
    model.zero_grad()
    for block in blocks:
        fully_shard(block)
    fully_shard(model)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.shape)
        return tensor.clone()

    with saving_all_but_weights(model, pack, lambda saved: saved):
        loss = model(x).square().sum()
    assert isinstance(blocks[0][0].weight, DTensor), "it is sharded again"
    loss.backward()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    assert len(expected) == 4 and set(packed) == {(5, 4)}
    for gradient, other in zip(gradients, expected, strict=True):
        assert isinstance(gradient, DTensor) and torch.equal(gradient.to_local(), other)
