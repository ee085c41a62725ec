"""Who holds the memory of the cards before training begins."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.core.units import format_bytes
from ascendtune.machine.free import IDLE_RATIO
from ascendtune.machine.inventory import Accelerator

CODE = "device_memory"


def _look(outside: Outside) -> Iterator[Finding]:
    devices = [*outside.npu_smi[0].devices, *outside.gpus[0]]
    if not devices:
        if outside.has_npus:
            yield unknown(CODE, "npu-smi lists no card to ask", remedy="see the finding npu_smi")
        return
    held = [device for device in devices if device.processes]
    silent = [device for device in devices if not device.processes and _is_used(device)]
    if held:
        yield _held(held)
    if silent:
        yield _silent(silent, outside)
    if not held and not silent:
        yield ok(CODE, f"nobody holds memory on {len(devices)} chips")


def _is_used(device: Accelerator) -> bool:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    return used is not None and bool(total) and used > IDLE_RATIO * (total or 0)


def _held(devices: list[Accelerator]) -> Finding:
    lines = [
        f"{device.label}: {process.name or 'a process'}, pid {process.pid}, {format_bytes(process.memory_used_bytes)}"
        for device in devices
        for process in device.processes
    ]
    pids = sorted({process.pid for device in devices for process in device.processes})
    labels = ", ".join(device.label for device in devices)
    return Finding(
        CODE,
        "warning",
        f"processes hold memory on {labels}",
        expected="no process before training begins",
        remedy=f"wait for them or choose other cards (`ascendtune devices --free N`); if they are leftovers of yours: "
        f"kill {' '.join(map(str, pids[:8]))}",
        evidence=tuple(lines[:16]),
    )


def _silent(devices: list[Accelerator], outside: Outside) -> Finding:
    lines = [
        f"{each.label}: {format_bytes(each.memory_used_bytes)} of {format_bytes(each.memory_total_bytes)} used"
        for each in devices
    ]
    place = "on the host, outside this container" if outside.in_container else "as root, and in every container"
    return Finding(
        CODE,
        "warning",
        f"memory of {', '.join(device.label for device in devices)} is used by nobody that can be seen from here",
        expected="a few per cent, the driver's own share",
        remedy=f"look for the process {place} (`npu-smi info`); after a crash: ps -ef | grep python",
        evidence=tuple(lines),
    )


CHECK = Check(
    CODE,
    what="Lists processes that hold memory on the chips, and chips whose memory is used by nobody visible.",
    why="After Ctrl-C or a crash, workers of a job often live on and keep the memory; the next job ends with an "
    "out-of-memory error although nothing seems to run. In a container, processes of others are not listed: used "
    "memory is the only sign of them.",
    fix="End the processes with `kill`, then `kill -9`. If nobody is listed, look on the host. Choose free cards with "
    "`ascendtune devices --free N`.",
    look=_look,
)
