"""Finds the processes of a job that use device memory, by comparing the vendor's list of processes with the job's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ascendtune.core.procfs import Stat
from ascendtune.job.record import Job
from ascendtune.machine.free_devices import IDLE_RATIO
from ascendtune.machine.inventory import Accelerator, local_pid
from ascendtune.machine.snapshot import take_snapshot
from ascendtune.machine.vendor.find import vendor_of

_RELEASE_SECONDS = 10.0
"""Time for a driver to release the memory of a killed process."""


@dataclass(frozen=True)
class DeviceMemoryHolder:
    """Memory of a device. `pid` is None if its process is not visible, as in most containers."""

    device: str
    pid: int | None
    memory_used_bytes: int | None


def devices_of(pids: Sequence[int], devices: Sequence[Accelerator]) -> dict[int, list[DeviceMemoryHolder]]:
    """The memory of each of `pids`. A container has other pids than the host; both are tried."""
    found: dict[int, list[DeviceMemoryHolder]] = {}
    for device in devices:
        for each in device.processes:
            pid = local_pid(each)
            if pid in pids:
                found.setdefault(pid, []).append(DeviceMemoryHolder(device.label, pid, each.memory_used_bytes))
    return found


def holders_after(job: Job, ended: Sequence[Stat], look_every_seconds: float) -> tuple[DeviceMemoryHolder, ...]:
    """The device memory that ended processes of a job still use; waits up to 10 s for the driver to release it."""
    if not vendor_of(job.kind).is_accelerator:
        return ()
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        holders = _holders_of(job, [stat.pid for stat in ended], take_snapshot().devices)
        if not holders or time.monotonic() > deadline:
            return holders
        time.sleep(look_every_seconds)


def _holders_of(job: Job, pids: Sequence[int], devices: Sequence[Accelerator]) -> tuple[DeviceMemoryHolder, ...]:
    named = [holder for each in devices_of(pids, devices).values() for holder in each]
    own = [device for device in devices if device.kind == job.kind and str(device.logical_id) in (job.device_ids or ())]
    return (
        *named,
        *(
            DeviceMemoryHolder(device.label, None, device.memory_used_bytes)
            for device in own
            if _is_unexplained(device)
        ),
    )


def _is_unexplained(device: Accelerator) -> bool:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    return not device.processes and bool(used and total and used > IDLE_RATIO * total)
