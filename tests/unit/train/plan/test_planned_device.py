"""A device that is planned for makes the choices of one that is here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ascendtune.machine.visible import VisibleDevices
from ascendtune.train.plan import estimator
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


@pytest.mark.parametrize(("name", "computes_bf16"), [("910A", False), ("910B3", True), ("not in the table", True)])
def test_device_that_is_here_is_planned_with_its_types(
    monkeypatch: pytest.MonkeyPatch, name: str, *, computes_bf16: bool
) -> None:
    devices = [SimpleNamespace(name=name, memory_total_bytes=1 << 35)]
    monkeypatch.setattr(estimator, "take_snapshot", lambda: SimpleNamespace(devices=devices))
    assert PlannedDevice(estimator.target_here(VisibleDevices("npu", ("0",)), 1)).supports_bf16 is computes_bf16
