"""Differences that the self-test of a fused operator allows as rounding."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch import nn

from ascendtune.train.kernel.fusable import FusableModule, Kernel, randn
from ascendtune.train.kernel.install import try_kernel
from ascendtune.train.precision import Precision

BF16 = Precision(compute="bf16", weights="fp32", reason="", device_type="cpu")
FP32 = Precision(compute="fp32", weights="fp32", reason="", device_type="cpu")


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class FusableDoubling(FusableModule):
    """Takes and gives fp32; between them bf16 may stand, where `multiplies_inside` says so."""

    @property
    def key(self) -> Hashable:
        return 0

    def forward_with(self, kernel: Kernel) -> Callable[..., Any]:
        return lambda module, x: kernel(x)

    def samples(self, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        return [randn((4, 8), device, torch.float32).requires_grad_()]

    def run(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.module(*samples),)


@pytest.mark.parametrize(
    ("precision", "multiplies", "off_by", "stays"),
    [
        (BF16, True, 3e-3, True),
        (BF16, True, 0.1, False),
        (BF16, False, 3e-3, False),
        (FP32, True, 3e-3, False),
        (FP32, True, 1e-6, True),
    ],
)
def test_rounding_of_bf16_is_allowed_where_products_are_made_in_it(
    precision: Precision, multiplies: bool, off_by: float, stays: bool
) -> None:
    module = FusableDoubling(Doubling())
    module.multiplies_inside = multiplies
    reason = try_kernel(module, lambda x: 2 * (1 + off_by) * x, torch.device("cpu"), precision)
    assert (reason is None) == stays, reason
    assert ("forward" in vars(module.module)) == stays
