"""A device that need not be here, as the choices of training see it."""

from __future__ import annotations

import torch

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.train.plan.request import Target


class PlannedDevice(CpuDevice):
    """Answers for `target`; its tensors are FakeTensors of the CPU, which every operator of torch takes."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target

    @property
    def attention(self) -> str:
        return {"npu": "npu_fusion", "cuda": "varlen"}.get(self._target.kind, super().attention)

    @property
    def kernels(self) -> str | None:
        return {"npu": "npu", "cuda": "cuda"}.get(self._target.kind)

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
        return self._target.kind == "cpu"

    @property
    def supports_bf16(self) -> bool:
        return self._target.bf16 if self._target.kind != "cpu" else super().supports_bf16

    @property
    def computes_bf16(self) -> bool:
        return self._target.bf16

    @property
    def supports_fp16(self) -> bool:
        return self._target.kind != "cpu"

    def fuses_optimizer(self, compute: str) -> bool:
        # As NpuDevice has it: no fused AdamW beside fp16's scaler.
        return not (self._target.kind == "npu" and compute == "fp16")
