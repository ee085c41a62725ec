"""The program that `doctor --deep` starts for each device: compute, copy, allocate, and print one line of JSON.

It is a process of its own because a broken driver ends it without an exception. Started as
`python -m ascendtune.check.doctor.probe KIND INDEX`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

    from ascendtune.machine.torch_backend.device import Device
    from ascendtune.machine.visible import Kind

_SIZE = 256, 512, 128
_COPY_BYTES = 64 << 20
_MOST_BYTES = 2 << 30


def main(arguments: list[str]) -> None:
    """Probe the device `arguments` = [kind, index], both as this process sees them."""
    from ascendtune.machine.torch_backend.find import open_device

    device = open_device(cast("Kind", arguments[0]), int(arguments[1]))
    device.activate()
    sys.stdout.write(json.dumps(probe(device)) + "\n")


def probe(device: Device) -> dict[str, Any]:
    """name, memory_total_bytes, {dtype: relative error} against float64 on the CPU, copy speeds, bytes allocated."""
    found: dict[str, Any] = {
        "name": device.name,
        "memory_total_bytes": device.memory_total_bytes,
        "errors": _errors(device),
    }
    if not device.shares_host_memory:
        found |= _speeds(device)
    return found | {"allocated_bytes": _allocate(device)}


def _errors(device: Device) -> dict[str, float]:
    import torch

    dtypes = {"fp32": torch.float32}
    if device.computes_bf16:
        dtypes["bf16"] = torch.bfloat16
    if device.supports_fp16:
        dtypes["fp16"] = torch.float16
    return {name: _error(device, dtype) for name, dtype in dtypes.items()}


def _error(device: Device, dtype: torch.dtype) -> float:
    """Of a product of (256, 512) and (512, 128): the norm of the difference over the norm of the product."""
    import torch

    rows, inner, columns = _SIZE
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(rows, inner, generator=generator).to(dtype)
    right = torch.randn(inner, columns, generator=generator).to(dtype)
    exact = left.double() @ right.double()
    place = device.torch_device
    ours = (left.to(place) @ right.to(place)).cpu().double()
    return float((ours - exact).norm() / exact.norm())


def _speeds(device: Device) -> dict[str, float]:
    import torch

    host = torch.empty(_COPY_BYTES, dtype=torch.uint8)
    there = host.to(device.torch_device)
    device.synchronize()
    began = time.perf_counter()
    there.copy_(host)
    device.synchronize()
    middle = time.perf_counter()
    there.cpu()
    ended = time.perf_counter()
    return {
        "to_device_bytes_per_second": _COPY_BYTES / (middle - began),
        "from_device_bytes_per_second": _COPY_BYTES / (ended - middle),
    }


def _allocate(device: Device) -> int:
    """Take an eighth of the memory, 2 GiB at most, write all of it and give it back."""
    import torch

    count = min(device.memory_total_bytes // 8, _MOST_BYTES)
    if device.shares_host_memory:
        count = min(count, _COPY_BYTES)
    torch.zeros(count, dtype=torch.uint8, device=device.torch_device).add_(1)
    device.synchronize()
    return count


if __name__ == "__main__":
    main(sys.argv[1:])
