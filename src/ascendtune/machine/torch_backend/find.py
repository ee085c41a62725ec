"""The devices that torch can use in this process."""

from __future__ import annotations

from pkgutil import resolve_name

import torch

from ascendtune.machine.torch_backend.device import Device
from ascendtune.machine.torch_backend.npu import npu_is_usable
from ascendtune.machine.visible import Kind

_BACKENDS = {
    "cpu": "ascendtune.machine.torch_backend.cpu:CpuDevice",
    "cuda": "ascendtune.machine.torch_backend.cuda:CudaDevice",
    "npu": "ascendtune.machine.torch_backend.npu:NpuDevice",
}


def open_device(kind: Kind, index: int = 0) -> Device:
    """The device `index` of `kind`, as this process sees it (visible-devices variables count).

    Raises:
        MachineError: torch has no such device.
    """
    backend: type[Device] = resolve_name(_BACKENDS[kind])
    return backend(index)


def find_device(index: int = 0) -> Device:
    """The best device that torch can use in this process: NPU, then CUDA, then CPU."""
    if npu_is_usable():
        return open_device("npu", index)
    if torch.cuda.is_available():
        return open_device("cuda", index)
    return open_device("cpu", index)


def supports_fp64(device: torch.device) -> bool:
    """Whether `device` computes in fp64; False for unknown kinds."""
    backend: type[Device] | None = resolve_name(_BACKENDS[device.type]) if device.type in _BACKENDS else None
    return backend is not None and backend.supports_fp64


def product_types(device: torch.device) -> dict[str, str]:
    """`Device.product_types` of a device of torch; empty for unknown kinds."""
    if device.type not in _BACKENDS:
        return {}
    backend: type[Device] = resolve_name(_BACKENDS[device.type])
    return backend(device.index or 0).product_types()
