"""The computer around the devices, through psutil and the kernel's own files."""

from __future__ import annotations

import os
import platform
import re
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from ascendtune.core.files import text_of


@dataclass(frozen=True)
class HostInfo:
    """`cores_usable` are those this process may run on; `numa_nodes` the cores of each node, as "0-23,96-119"."""

    hostname: str
    architecture: str
    operating_system: str | None
    kernel: str
    cpu_name: str | None
    cores: int | None
    cores_usable: int
    load_average: float | None
    memory_total_bytes: int
    memory_available_bytes: int
    shared_memory_total_bytes: int | None
    numa_nodes: dict[str, str]


def inspect_host(root: Path = Path("/")) -> HostInfo:
    """Facts about the computer; `root` is the root of its files' paths."""
    memory = psutil.virtual_memory()
    return HostInfo(
        hostname=socket.gethostname(),
        architecture=platform.machine(),
        operating_system=_operating_system(root),
        kernel=platform.release(),
        cpu_name=_cpu_name(root),
        cores=psutil.cpu_count(),
        cores_usable=len(os.sched_getaffinity(0)),
        load_average=psutil.getloadavg()[0],
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        shared_memory_total_bytes=_shared_memory(root),
        numa_nodes=numa_nodes(root),
    )


def numa_nodes(root: Path = Path("/")) -> dict[str, str]:
    """Node -> its cores, as the kernel writes them; empty if the kernel does not report them."""
    nodes = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    found = {path.parent.name.removeprefix("node"): text_of(path).strip() for path in nodes}
    return dict(sorted(found.items(), key=lambda node: int(node[0])))


def _operating_system(root: Path) -> str | None:
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', text_of(root / "etc/os-release"), re.MULTILINE)
    return name[1] if name else None


def _cpu_name(root: Path) -> str | None:
    """The name of the CPU; x86 has it as "model name", aarch64 kernels of openEuler and Ubuntu have no name."""
    name = re.search(r"^(?:model name|Hardware)\s*:(.*)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return name[1].strip() if name else None


def _shared_memory(root: Path) -> int | None:
    try:
        return psutil.disk_usage(str(root / "dev/shm")).total
    except OSError:
        return None
