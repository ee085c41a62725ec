"""The description of a CUDA device, without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ascendtune.machine.torch_backend.cuda import CudaDevice, _allows_tf32


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("Tesla V100-SXM2-32GB", None),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H800 PCIe", None),
        ("NVIDIA H800", 989e12),
    ],
)
def test_peak_is_that_of_the_whole_chip_or_not_known(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a chip, or a slower one of the same name, would have the `mfu` of the whole."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: name)
    assert CudaDevice().peak_flops == peak


@pytest.mark.parametrize("code", [0, 2])
def test_memory_that_cannot_be_locked_leaves_no_error_behind(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that fails leaves its error in the CUDA runtime; the check after the next kernel takes and raises it."""
    left: list[int] = []
    unlocked: list[int] = []

    def register(address: int, size: int, flags: int) -> int:
        left.extend([code] if code else [])
        return code

    def kernel(*_: Any, **__: Any) -> None:
        if left:
            raise RuntimeError(f"CUDA error: {left.pop()}")

    cudart = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unlocked.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    buffer = torch.empty(8, dtype=torch.uint8)
    address = buffer.data_ptr()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "ones", kernel)
        assert CudaDevice().pin(buffer) is not bool(code)
        kernel()
    del buffer
    assert unlocked == ([] if code else [address])


@pytest.mark.parametrize(
    ("capability", "is_allowed", "override", "found"),
    [
        ((8, 0), True, None, "tf32"),
        ((8, 0), False, None, "fp32"),
        ((7, 0), True, None, "fp32"),
        ((9, 0), True, "0", "fp32"),
        ((9, 0), True, "1", "tf32"),
    ],
)
def test_products_are_in_tf32_where_program_chip_and_environment_allow_it(
    capability: tuple[int, int], is_allowed: bool, override: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=is_allowed))
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    if override is not None:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    assert CudaDevice().product_types()["matmul"] == found


def test_switches_of_torch_are_read_whichever_way_they_were_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    device, before = CudaDevice(), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        # Convolutions have a switch of their own, which torch sets by default.
        assert device.product_types() == {"matmul": "tf32", "conv": "tf32"}
    finally:
        torch.set_float32_matmul_precision(before)
    assert device.product_types()["matmul"] == "fp32"
    # Torch before 2.9 has the older switch alone.
    assert _allows_tf32(SimpleNamespace(allow_tf32=True)) and not _allows_tf32(SimpleNamespace(allow_tf32=False))
