"""A device that need not be present, in the interface that training uses."""

from __future__ import annotations

import torch

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.train.plan.request import Target


class PlannedDevice(CpuDevice):
    """A device like `target`; its tensors are FakeTensors on the CPU, which all operators of torch accept."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self._planned = vendor_of(target.kind).planned
        self._has_fused_operators = target.bf16 or self._planned.fuses_without_bf16

    @property
    def attention(self) -> str:
        return self._planned.attention if self._has_fused_operators else "sdpa"

    @property
    def kernels(self) -> str | None:
        return self._planned.kernels if self._has_fused_operators else None

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def memory_total_bytes(self) -> int:
        return self._target.memory_bytes

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def shares_host_memory(self) -> bool:
        return self._target.is_host

    @property
    def supports_bf16(self) -> bool:
        return super().supports_bf16 if self._target.is_host else self._target.bf16

    @property
    def computes_bf16(self) -> bool:
        return self._target.bf16

    @property
    def supports_fp16(self) -> bool:
        return self._planned.supports_fp16

    def fuses_optimizer(self, compute: str) -> bool:
        return self._has_fused_operators and (compute != "fp16" or self._planned.fuses_optimizer_in_fp16)
