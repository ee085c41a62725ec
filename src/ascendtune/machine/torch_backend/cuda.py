"""NVIDIA GPUs; their ranks communicate by NCCL."""

from __future__ import annotations

import importlib.util
import os
import weakref
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import torch

from ascendtune.machine.torch_backend.device import Device, require_index

# Dense bf16 FLOP/s from NVIDIA's data sheets; None: slower than the chip whose name it has.
_PEAK_FLOPS = {
    " MIG ": None,
    "4090 D": None,
    "4090 Laptop": None,
    "H800 PCIe": None,
    "A100": 312e12,
    "A800": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H200": 989e12,
    "H20": 148e12,
    "L40S": 362e12,
    "4090": 165e12,
}
_REGISTER_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context of the process."""
_FIRST_WITH_TF32 = 8
"""Major compute capability of the first chips with TF32."""


class CudaDevice(Device):
    kind = "cuda"
    collective_backend = "nccl"
    runs_gpu_packages = True
    # cuBLAS refuses deterministic mode without a workspace of fixed size (CUDA documentation, cuBLAS).
    deterministic_variables = MappingProxyType({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        require_index(index, torch.cuda.device_count(), "cuda")

    @property
    def attention(self) -> str:
        """torch's varlen attention if this torch has it and the chip computes bf16 (sm_80 and later)."""
        has_varlen = importlib.util.find_spec("torch.nn.attention.varlen") is not None
        return "varlen" if has_varlen and torch.cuda.get_device_capability(self.index)[0] >= 8 else "sdpa"

    @property
    def kernels(self) -> str | None:
        """Liger's, if it is installed; it needs Triton, which torch includes for CUDA. Torch's own in any case."""
        return "liger" if importlib.util.find_spec("liger_kernel") is not None else "cuda"

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", self.index)

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.index)

    @property
    def memory_total_bytes(self) -> int:
        return int(torch.cuda.get_device_properties(self.index).total_memory)

    def memory_peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_allocated(self.index))

    def activate(self) -> None:
        torch.cuda.set_device(self.index)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def pin(self, buffer: torch.Tensor) -> bool:
        if not buffer.nbytes:
            return False
        cudart: Any = torch.cuda.cudart()
        # Copies to pages that cannot be locked also work, only more slowly.
        if int(cudart.cudaHostRegister(buffer.data_ptr(), buffer.nbytes, _REGISTER_PORTABLE)) == 0:
            weakref.finalize(buffer, cudart.cudaHostUnregister, buffer.data_ptr())
            return True
        # CUDA keeps the error, and torch would raise it after the next kernel.
        with suppress(RuntimeError):
            torch.ones(1, device=self.torch_device)
        return False

    @property
    def supports_bf16(self) -> bool:
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))

    @property
    def supports_fp16(self) -> bool:
        return True

    def product_types(self) -> dict[str, str]:
        """TF32 where torch allows it, on chips that have it (sm_80 and later).

        NVIDIA's containers allow it for matrix products (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), torch by default for
        convolutions.
        """
        cudnn = torch.backends.cudnn
        switches = {"matmul": torch.backends.cuda.matmul, "conv": getattr(cudnn, "conv", cudnn)}
        has_tf32 = torch.cuda.get_device_capability(self.index)[0] >= _FIRST_WITH_TF32
        # 0 forbids it to all of NVIDIA's libraries, whatever the program allows.
        has_tf32 &= os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
        return {name: "tf32" if has_tf32 and _allows_tf32(switch) else "fp32" for name, switch in switches.items()}

    def profiled_activities(self) -> list[torch.profiler.ProfilerActivity]:
        return [*super().profiled_activities(), torch.profiler.ProfilerActivity.CUDA]

    @property
    def peak_flops(self) -> float | None:
        return next((flops for chip, flops in _PEAK_FLOPS.items() if chip in self.name), None)

    def versions(self) -> dict[str, str | None]:
        return {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}


def _allows_tf32(switch: Any) -> bool:
    # From torch 2.9 on `allow_tf32` raises an error if the program has set `fp32_precision`, which is always readable.
    allowed = getattr(switch, "fp32_precision", None)
    return bool(switch.allow_tf32) if allowed is None else allowed == "tf32"
