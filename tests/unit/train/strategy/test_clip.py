from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.strategy.base import Strategy


@pytest.mark.long
def test_norm_of_a_large_gradient_keeps_six_digits() -> None:
    parameters = [nn.Parameter(torch.empty(shape)) for shape in ((40_000, 500), (7,), (), (2, 3, 5))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for each in parameters:
            each.grad = torch.randn(each.shape)
    gradients = [each.grad.double() for each in parameters if each.grad is not None]
    expected = float(torch.cat([each.flatten() for each in gradients]).norm())
    strategy = Strategy(find_device())
    norm = strategy.grad_norm(nn.Module(), parameters)
    strategy.clip(parameters, 1.0, norm)
    assert float(norm) == pytest.approx(expected, rel=2e-6)
    for parameter, before in zip(parameters, gradients, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), before / expected, rtol=2e-6, atol=1e-12)


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_norm_of_a_large_divided_gradient_keeps_six_digits() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = [torch.randn(16_000, 500), torch.randn(7)]
    mesh = init_device_mesh("cpu", (1,))
    parameters = [nn.Parameter(distribute_tensor(torch.empty_like(each), mesh, [Shard(0)])) for each in whole]
    for parameter, gradient in zip(parameters, whole, strict=True):
        parameter.grad = distribute_tensor(gradient, mesh, [Shard(0)])
    norm = Strategy(find_device()).grad_norm(nn.Module(), parameters)
    assert isinstance(norm, DTensor)
    expected = float(torch.cat([each.flatten() for each in whole]).double().norm())
    assert float(norm.full_tensor()) == pytest.approx(expected, rel=2e-6)
