"""A device that is planned for makes the choices of one that is here."""

from __future__ import annotations

import pytest

from ascendtune.train.plan.device_table import named_target
from ascendtune.train.plan.planned_device import PlannedDevice


@pytest.mark.parametrize(
    ("name", "attention", "kernels", "fuses_optimizer"),
    [("910b3", "npu_fusion", "npu", True), ("910a", "sdpa", None, False)],
)
def test_npu_has_fused_operators_from_the_910b_on(
    name: str, attention: str, kernels: str | None, *, fuses_optimizer: bool
) -> None:
    device = PlannedDevice(named_target(name, 1))
    assert (device.attention, device.kernels) == (attention, kernels)
    assert device.fuses_optimizer("fp32") is fuses_optimizer and device.fuses_optimizer("fp16") is False
