"""NVIDIA GPUs through NVML (package nvidia-ml-py, optional). No library, no driver or no GPU: nothing, quietly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ascendtune.machine.inventory import Accelerator, DeviceProcess, Trouble
from ascendtune.machine.language import say

_DEV = Path("/dev")


def gpus() -> tuple[tuple[Accelerator, ...], str | None, tuple[Trouble, ...]]:
    """The GPUs, the driver's version, and what went wrong."""
    try:
        import pynvml
    except ImportError:
        return (), None, _without_library()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return (), None, ()
    except pynvml.NVMLError as error:
        what = say("NVML cannot be opened: {error}", error=error)
        remedy = say("restart after a driver update; check `nvidia-smi`")
        return (), None, (Trouble("nvml_fails", what, remedy, str(error), blinding=True),)
    try:
        return _read(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _without_library() -> tuple[Trouble, ...]:
    if not any(_DEV.glob("nvidia[0-9]*")):
        return ()
    what, remedy = say("NVIDIA GPUs are here, and nvidia-ml-py is not installed"), "pip install 'ascendtune[cuda]'"
    return (Trouble("nvml_missing", what, remedy, blinding=True),)


def _read(nvml: Any) -> tuple[tuple[Accelerator, ...], str | None, tuple[Trouble, ...]]:
    def told(question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None where this GPU or this user gets none."""
        try:
            return question(*arguments)
        except nvml.NVMLError:
            return None

    found, troubles = [], []
    for index in range(told(nvml.nvmlDeviceGetCount) or 0):
        handle = told(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            what = say("GPU {index} does not answer", index=index)
            troubles.append(Trouble("gpu_lost", what, say("look at the kernel log for Xid; restart the machine")))
        else:
            found.append(_gpu(nvml, index, handle, told))
    return tuple(found), _text(told(nvml.nvmlSystemGetDriverVersion)), tuple(troubles)


def _gpu(nvml: Any, index: int, handle: Any, told: Callable[..., Any]) -> Accelerator:
    memory = told(nvml.nvmlDeviceGetMemoryInfo, handle)
    load = told(nvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = told(nvml.nvmlDeviceGetPowerUsage, handle)
    bus = told(nvml.nvmlDeviceGetPciInfo, handle)
    return Accelerator(
        "cuda",
        phy_id=index,
        logical_id=index,
        uuid=_text(told(nvml.nvmlDeviceGetUUID, handle)),
        name=_text(told(nvml.nvmlDeviceGetName, handle)),
        bus_id=_text(bus.busId) if bus else None,
        utilization_ratio=load.gpu / 100 if load else None,
        memory_used_bytes=memory.used if memory else None,
        memory_total_bytes=memory.total if memory else None,
        power_watts=milliwatts / 1000 if milliwatts is not None else None,
        temperature_celsius=told(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        processes=_processes(nvml, handle, told),
    )


def _processes(nvml: Any, handle: Any, told: Callable[..., Any]) -> tuple[DeviceProcess, ...]:
    found: dict[int, DeviceProcess] = {}
    for question in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for each in told(question, handle) or ():
            found.setdefault(each.pid, DeviceProcess(each.pid, None, _name(each.pid), each.usedGpuMemory))
    return tuple(found.values())


def _name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
