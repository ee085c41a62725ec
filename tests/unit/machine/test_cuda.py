"""Against a stand-in for NVML; the real library runs where there are GPUs (docs/hardware)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ascendtune.machine import cuda
from ascendtune.machine.cuda import gpus


class _Error(Exception):
    pass


class _LibraryNotFound(_Error):
    pass


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two GPUs, the second of which is lost; this process computes on the first."""

    def handle(index: int) -> str:
        if index == 1:
            raise _Error("GPU is lost")
        return "gpu0"

    def not_supported(handle: str) -> Any:
        raise _Error("Not Supported")

    module = ModuleType("pynvml")
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=5 << 30)
    vars(module).update(
        NVMLError=_Error,
        NVMLError_LibraryNotFound=_LibraryNotFound,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.65.06",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUUID=lambda handle: "GPU-8f1a",
        nvmlDeviceGetName=lambda handle: "NVIDIA H100 80GB HBM3",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=b"00000000:3B:00.0"),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=93),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=6 << 30, total=80 << 30),
        nvmlDeviceGetPowerUsage=not_supported,
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [mine, SimpleNamespace(pid=2**30, usedGpuMemory=None)],
        nvmlDeviceGetGraphicsRunningProcesses=lambda handle: [mine],
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_gpu_facts_come_from_nvml(nvml: Any) -> None:
    (gpu,), driver, troubles = gpus()
    assert driver == "580.65.06" and [trouble.code for trouble in troubles] == ["gpu_lost"]
    told = gpu.as_json()
    assert (gpu.uuid, gpu.is_named("GPU-8"), gpu.is_named("GPU-9")) == ("GPU-8f1a", True, False)
    processes = told.pop("processes")
    assert {name: value for name, value in told.items() if value is not None} == {
        "kind": "cuda",
        "phy_id": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "bus_id": "00000000:3B:00.0",
        "utilization_ratio": 0.93,
        "memory_used_bytes": 6 << 30,
        "memory_total_bytes": 80 << 30,
        "temperature_celsius": 61,
    }
    assert [(each["pid"], each["memory_used_bytes"]) for each in processes] == [(os.getpid(), 5 << 30), (2**30, None)]
    assert processes[0]["name"] and processes[1]["name"] is None


def test_no_driver_is_quiet_and_a_broken_one_is_not(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> Any:
        def init() -> None:
            raise error

        return init

    monkeypatch.setattr(nvml, "nvmlInit", fail(_LibraryNotFound()))
    assert gpus() == ((), None, ())
    monkeypatch.setattr(nvml, "nvmlInit", fail(_Error("Driver/library version mismatch")))
    (trouble,) = gpus()[2]
    assert trouble.blinding and "version mismatch" in trouble.what


def test_without_the_library_gpus_are_not_denied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(cuda, "_DEV", tmp_path)
    assert gpus() == ((), None, ())
    (tmp_path / "nvidia0").touch()
    (trouble,) = gpus()[2]
    assert trouble.code == "nvml_missing" and "ascendtune[cuda]" in trouble.remedy
