from __future__ import annotations

import pytest
import torch
from torch import nn

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
