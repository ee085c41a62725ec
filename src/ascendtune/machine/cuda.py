"""NVIDIA GPUs through NVML (package nvidia-ml-py, optional). Without library, driver or GPU the result is empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ascendtune.machine.inventory import Accelerator, DeviceProcess, Trouble
from ascendtune.machine.language import say

_DEV = Path("/dev")


def gpus() -> tuple[tuple[Accelerator, ...], str | None, tuple[Trouble, ...]]:
    """The GPUs, the driver's version, and the errors."""
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
    what, remedy = say("NVIDIA GPUs were found, but nvidia-ml-py is not installed"), "pip install 'ascendtune[cuda]'"
    return (Trouble("nvml_missing", what, remedy, blinding=True),)


def _read(nvml: Any) -> tuple[tuple[Accelerator, ...], str | None, tuple[Trouble, ...]]:
    def answer_of(question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer; None if this GPU or this user receives none."""
        try:
            return question(*arguments)
        except nvml.NVMLError:
            return None

    found, troubles = [], []
    for index in range(answer_of(nvml.nvmlDeviceGetCount) or 0):
        handle = answer_of(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            what = say("GPU {index} does not answer", index=index)
            troubles.append(Trouble("gpu_lost", what, say("look at the kernel log for Xid; restart the machine")))
        else:
            found.append(_gpu(nvml, index, handle, answer_of))
    return tuple(found), _text(answer_of(nvml.nvmlSystemGetDriverVersion)), tuple(troubles)


def _gpu(nvml: Any, index: int, handle: Any, answer_of: Callable[..., Any]) -> Accelerator:
    memory = answer_of(nvml.nvmlDeviceGetMemoryInfo, handle)
    load = answer_of(nvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = answer_of(nvml.nvmlDeviceGetPowerUsage, handle)
    bus = answer_of(nvml.nvmlDeviceGetPciInfo, handle)
    return Accelerator(
        "cuda",
        phy_id=index,
        logical_id=index,
        uuid=_text(answer_of(nvml.nvmlDeviceGetUUID, handle)),
        name=_text(answer_of(nvml.nvmlDeviceGetName, handle)),
        bus_id=_text(bus.busId) if bus else None,
        utilization_ratio=load.gpu / 100 if load else None,
        memory_used_bytes=memory.used if memory else None,
        memory_total_bytes=memory.total if memory else None,
        power_watts=milliwatts / 1000 if milliwatts is not None else None,
        temperature_celsius=answer_of(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        processes=_processes(nvml, handle, answer_of),
    )


def _processes(nvml: Any, handle: Any, answer_of: Callable[..., Any]) -> tuple[DeviceProcess, ...]:
    found: dict[int, DeviceProcess] = {}
    for question in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for each in answer_of(question, handle) or ():
            found.setdefault(each.pid, DeviceProcess(each.pid, None, _name(each.pid), each.usedGpuMemory))
    return tuple(found.values())


def _name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
