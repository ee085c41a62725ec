"""Losses, gradient norms and checkpoints of the device, held against the CPU's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from ascendtune.train import adamw
from ascendtune.train.fit import FitResult

if TYPE_CHECKING:
    from tests.hardware.conftest import TrainOn

    from ascendtune.machine.torch_backend.device import Device

NF4 = {"quantization": "nf4", "double_quantization": True}
RECIPES: dict[str, dict[str, Any]] = {
    "full": {},
    "packed": {"data": {"packing": True}},
    "accumulated": {"batch": {"per_device": 2, "accumulate": 2}},
    "lora": {"method": {"tuner": "lora"}},
    "nf4": {"method": {"tuner": "lora"}, "model": NF4},
    "nf4-fsdp": {"parallel": {"strategy": "fsdp"}, "method": {"tuner": "lora"}, "model": NF4},
    "checkpointed": {"memory": {"gradient_checkpointing": True, "offload_activations": True}},
    "fsdp": {"parallel": {"strategy": "fsdp"}},
    "fsdp-lora": {"parallel": {"strategy": "fsdp"}, "method": {"tuner": "lora"}},
    "fsdp-offload": {"parallel": {"strategy": "fsdp", "fsdp": {"offload": True}}},
    "fsdp-activations": {"parallel": {"strategy": "fsdp"}, "memory": {"offload_activations": True}},
}
"""Each strategy that one device can run, each tuner, and the ways that batches reach the device."""
ALLOWED = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 1e-2}
"""Difference of a step's loss from that of the CPU, relative: what rounding leaves after six steps of Adam."""


def losses(result: FitResult) -> list[float]:
    return [record["loss"] for record in result.run.read_metrics()]


@pytest.mark.parametrize("name", RECIPES)
def test_losses_in_fp32_are_those_of_the_cpu(name: str, device: Device, cpu: Device, train_on: TrainOn) -> None:
    changes = RECIPES[name]
    # The reference is undivided: a strategy must not change the numbers.
    plain = {key: value for key, value in changes.items() if key not in ("parallel", "memory")}
    expected = train_on(cpu, "reference", precision="fp32", kernel="off", **plain)
    found = train_on(device, "found", precision="fp32", **changes)
    assert losses(found) == pytest.approx(losses(expected), rel=ALLOWED["fp32"])
    norms = [[record["grad_norm"] for record in each.run.read_metrics()] for each in (found, expected)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


@pytest.mark.parametrize("name", ["full", "fsdp", "fsdp-offload"])
def test_losses_with_the_kernel_of_adamw_for_all_weights_are_those_of_the_cpu(
    name: str, device: Device, cpu: Device, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.kernels is None:
        pytest.skip(f"no fused operators on {device.kind}")
    monkeypatch.setattr(adamw, "LARGE", 1)
    clipped = {"max_grad_norm": 0.1}
    expected = train_on(cpu, "reference", precision="fp32", kernel="off", optim=clipped)
    found = train_on(device, "found", precision="fp32", optim=clipped, **RECIPES[name])
    described = found.run.read()["resolved"]["kernel"]["adamw"]
    assert ("on the device" if name == "fsdp-offload" else "numbers and more") in described
    assert losses(found) == pytest.approx(losses(expected), rel=ALLOWED["fp32"])


@pytest.mark.parametrize("name", ["full", "packed", "lora", "fsdp", "fsdp-offload"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_losses_in_half_precision_are_those_of_the_cpu_in_fp32(
    precision: str, name: str, device: Device, cpu: Device, train_on: TrainOn
) -> None:
    if precision == "fp16" and not device.supports_fp16:
        pytest.skip(f"{device.name} does not train in fp16")
    changes = RECIPES[name]
    plain = {key: value for key, value in changes.items() if key != "parallel"}
    expected = train_on(cpu, "reference", precision="fp32", kernel="off", **plain)
    found = train_on(device, "found", precision=precision, **changes)
    records = list(found.run.read_metrics())
    # The scale of fp16 may begin too high: a step that overflows changes no weight, and later losses are other ones.
    assert records[-1]["skipped_steps"] <= 3
    count = next((number for number, each in enumerate(records, 1) if each["skipped_steps"]), len(records))
    assert losses(found)[:count] == pytest.approx(losses(expected)[:count], rel=ALLOWED[precision])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_resumed_run_repeats_the_uninterrupted_one_bit_by_bit(
    strategy: str, device: Device, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adamw, "LARGE", 1)
    changes: dict[str, Any] = {
        "precision": "bf16", "deterministic": True, "parallel": {"strategy": strategy}, "model": {"attention": "sdpa"},
        "optim": {"max_steps": 6, "warmup_steps": 2, "scheduler": "cosine"},
    }  # fmt: skip
    whole = train_on(device, "whole", **changes, checkpoint={"every_steps": 3, "keep": 9})
    again = train_on(
        device, "again", **changes, checkpoint={"resume": str(whole.run.checkpoint(3))}, trust_checkpoint=True
    )
    assert losses(again) == losses(whole)[3:]
    expected, found = (load_file(each.model / "model.safetensors") for each in (whole, again))
    assert expected.keys() == found.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
