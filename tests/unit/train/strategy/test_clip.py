from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.strategy.fsdp import FsdpStrategy


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
    expected = float(torch.cat([each.flatten() for each in whole]).double().norm())
    assert float(norm) == pytest.approx(expected, rel=2e-6)


class Dispatches(TorchDispatchMode):
    """Counts operations on tensors that are divided: each takes the host as long as several others."""

    def __init__(self) -> None:
        super().__init__()
        self.of_divided = self.views = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            self.of_divided += 1
            return NotImplemented
        self.views += function is torch.ops.aten.view.default
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_norm_of_divided_gradients_is_that_of_dtensor_without_its_operations(shape: tuple[int, ...]) -> None:
    mesh = init_device_mesh("cpu", shape)
    placements = [Replicate()] * (len(shape) - 1) + [Shard(0)]
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(distribute_tensor(torch.empty(5, 7), mesh, placements)) for _ in range(9)]
    for each in parameters:
        each.grad = distribute_tensor(torch.randn(5, 7, generator=generator), mesh, placements)
    total = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
    assert isinstance(total, DTensor)
    strategy = FsdpStrategy.__new__(FsdpStrategy)
    strategy.device, strategy._shard_group = find_device(), mesh.get_group(len(shape) - 1)
    with Dispatches() as dispatches:
        norm = strategy.grad_norm(nn.Module(), parameters)
    assert torch.equal(norm, total.full_tensor())
    assert dispatches.of_divided == 0 and dispatches.views == 0


@pytest.mark.usefixtures("group_of_one")
def test_parts_without_a_row_are_left_out_of_the_norm() -> None:
    parameters = [nn.Parameter(torch.empty(rows, 3)) for rows in (0, 2)]
    for each in parameters:
        each.grad = torch.ones(each.shape)
    assert float(Strategy(find_device()).grad_norm(nn.Module(), parameters)) == pytest.approx(6**0.5)
    assert float(Strategy(find_device()).grad_norm(nn.Module(), parameters[:1])) == 0


def test_norm_of_bf16_gradients_is_fp32() -> None:
    """In bf16 it would have two to three digits, and so would the factor that gradients are clipped with."""
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.empty(shape, dtype=torch.bfloat16)) for shape in ((50, 7), (7,)) * 30]
    for each in parameters:
        each.grad = torch.randn(each.shape, generator=generator).bfloat16()
    norm = Strategy(find_device()).grad_norm(nn.Module(), parameters)
    expected = float(torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]).double().norm())
    assert norm.dtype == torch.float32 and float(norm) == pytest.approx(expected, rel=1e-5)
