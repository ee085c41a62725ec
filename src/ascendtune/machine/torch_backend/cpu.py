"""The CPU as a training device; its ranks communicate by Gloo."""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import psutil
import torch

from ascendtune.machine.torch_backend.device import Device

_KEPT_PRODUCTS = "64"
"""More than one step needs: about 15 of a full model, 25 with adapters."""
_LOOK_SECONDS = 1.0


class CpuDevice(Device):
    kind = "cpu"
    collective_backend = "gloo"
    binds_process_group = False
    _memory_peak = (-math.inf, 0)

    @property
    def attention(self) -> str:
        return "sdpa_fp32"

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def name(self) -> str:
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            return "CPU"
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")

    @property
    def memory_total_bytes(self) -> int:
        return int(psutil.virtual_memory().total)

    def memory_free_bytes(self) -> int:
        return int(psutil.virtual_memory().available)

    def memory_peak_bytes(self) -> int:
        """At most a second old: the kernel takes up to a millisecond to answer for a process with much memory."""
        looked_at, peak = self._memory_peak
        if (now := time.monotonic()) - looked_at > _LOOK_SECONDS:
            found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            peak = found if sys.platform == "darwin" else found * 1024
            self._memory_peak = now, peak
        return peak

    def activate(self) -> None:
        """Limit torch's cache of matrix products; the user's own limits take precedence."""
        # One entry for every shape, up to 1,024 in oneDNN and again in torch's wrapper of it: with lengths that differ
        # from step to step few are used again, and together they outgrow a small model.
        for capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
            os.environ.setdefault(capacity, _KEPT_PRODUCTS)

    def synchronize(self) -> None:
        """Does nothing: operations on the CPU are complete when they return."""

    @property
    def supports_bf16(self) -> bool:
        # Every CPU computes bf16, but without these instructions it is slower than fp32, so `auto` must not choose it.
        # With AVX512-BF16 only, a step takes 1.3 times as long as in fp32 with hidden size 64, half with 256 and 512.
        return bool(torch.cpu._is_avx512_bf16_supported()) or bool(torch.cpu._is_amx_tile_supported())

    @property
    def computes_bf16(self) -> bool:
        return True

    @property
    def shares_host_memory(self) -> bool:
        return True

    @property
    def runs_asynchronously(self) -> bool:
        return False

    def copy_to_host(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: tensor

    def memory_history(self, path: Path) -> AbstractContextManager[None]:
        """torch keeps no history of the host's allocator."""
        return nullcontext()

    def use_in_thread(self) -> None:
        """Does nothing: there is only one CPU."""

    def random_state(self) -> torch.Tensor | None:
        return None

    def set_random_state(self, state: torch.Tensor) -> None:
        """Does nothing: the state of another kind of device has no meaning here."""

    @property
    def supports_fp16(self) -> bool:
        return False

    @property
    def peak_flops(self) -> float | None:
        return None

    def product_types(self) -> dict[str, str]:
        """Fp32, unless the program allows less: then oneDNN decides by the chip."""
        onednn = torch.backends.mkldnn
        # Torch has these switches from 2.9 on, and none of single operations before.
        switches = {"matmul": getattr(onednn, "matmul", None), "conv": getattr(onednn, "conv", None)}
        return {
            name: "fp32"
            for name, switch in switches.items()
            if getattr(switch, "fp32_precision", "none") not in ("tf32", "bf16")
        }

    def versions(self) -> dict[str, str | None]:
        return {}
