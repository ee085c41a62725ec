"""Who holds the memory of the cards before training begins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.core.units import count_of, format_bytes
from ascendtune.machine.free import IDLE_RATIO
from ascendtune.machine.inventory import Accelerator
from ascendtune.machine.vendor.find import vendor_of

CODE = "device_memory"


def _look(outside: Outside) -> Iterator[Finding]:
    devices = [*outside.npu_smi[0].devices, *outside.gpus[0]]
    if not devices:
        if outside.has_npus:
            yield _without_npu_smi(outside)
        return
    # A desktop's windows hold a little of every GPU.
    held = [
        device
        for device in devices
        if device.processes and (_is_used(device) or not vendor_of(device.kind).lists_desktop_processes)
    ]
    silent = [device for device in devices if not device.processes and _is_used(device)]
    if held:
        yield _held(held)
    if silent:
        yield _silent(silent, outside)
    if not held and not silent:
        yield ok(CODE, f"nobody holds memory on {len(devices)} chips")


def _without_npu_smi(outside: Outside) -> Finding:
    """The kernel's own view: whoever has a card's device file open."""
    holders = _holders(outside)
    if not holders:
        why = "npu-smi lists no card to ask; no process that can be seen from here has a card open"
        return unknown(CODE, why, remedy="see the finding npu_smi")
    return Finding(
        CODE,
        "warning",
        f"npu-smi lists no card to ask, but {count_of(len(holders), 'process has', 'processes have')} a card open",
        expected="no process before training begins",
        remedy=f"if they are leftovers of yours: kill {' '.join(map(str, list(holders)[:8]))}",
        evidence=tuple(f"pid {pid} ({name}) has {nodes} open" for pid, (name, nodes) in list(holders.items())[:16]),
    )


def _holders(outside: Outside) -> dict[int, tuple[str, str]]:
    """pid -> (name, device files), from /proc; only processes of this user unless root looks."""
    found: dict[int, tuple[str, str]] = {}
    for process in outside.path("/proc").glob("[0-9]*"):
        nodes = {target.name for each in _open_files(process) if (target := Path(each)).match("/dev/davinci[0-9]*")}
        if nodes and int(process.name) != os.getpid():
            name = outside.text(f"/proc/{process.name}/comm").strip() or "a process"
            found[int(process.name)] = (name, ", ".join(sorted(nodes)))
    return found


def _open_files(process: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(process / "fd") as entries:
        for entry in entries:
            with suppress(OSError):
                yield str(Path(entry.path).readlink())


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
    lines += [f"pid {pid} ({name}) has {nodes} open" for pid, (name, nodes) in list(_holders(outside).items())[:16]]
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
    what="Lists processes that hold memory on the chips, and chips whose memory is used by nobody visible; then, and "
    "where npu-smi does not answer, processes that have a card's device file open.",
    why="After Ctrl-C or a crash, workers of a job often live on and keep the memory; the next job ends with an "
    "out-of-memory error although nothing seems to run. In a container, processes of others are not listed: used "
    "memory is the only sign of them.",
    fix="End the processes with `kill`, then `kill -9`. If nobody is listed, look on the host. Choose free cards with "
    "`ascendtune devices --free N`.",
    look=_look,
)
