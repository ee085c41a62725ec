"""Facts that must or should be equal on machines that train together: versions, devices, variables, limits."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ascendtune.check.doctor.cann import loaded_toolkit
from ascendtune.check.doctor.system import System
from ascendtune.check.nodes.language import say
from ascendtune.core.errors import MachineError
from ascendtune.core.units import format_bytes
from ascendtune.job.nodes.handshake_reply import COMPARED
from ascendtune.machine.host import inspect_host
from ascendtune.machine.inventory import Accelerator
from ascendtune.machine.route import interface_of, source_address

REQUIRED = ("python", *COMPARED)
"""Facts that must be equal for a job of several nodes to start."""
_FURTHER_PACKAGES = ("peft", "numpy")
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "locked memory": resource.RLIMIT_MEMLOCK,
}
_VARIABLE = re.compile(r"(HCCL|GLOO|NCCL|TP)_\w+|(ASCEND_RT|CUDA)_VISIBLE_DEVICES")
_OF_ONE_NODE = ("HCCL_IF_IP",)
"""An address, which rightly differs between nodes."""


def facts(system: System) -> Iterator[tuple[str, str]]:
    """Pairs (name, value), fast ones first; missing values are skipped."""
    pairs = chain(_software(system), _variables(system), _limits(system), _computer(system), _devices(system))
    yield from ((name, value) for name, value in pairs if value)


def mtu_towards(system: System, address: str) -> str | None:
    """The largest packet, in bytes, that can be sent to `address`; None if no route is known."""
    try:
        name = interface_of(source_address(address))
    except MachineError:
        return None
    mtu = system.text(f"/sys/class/net/{name}/mtu").strip()
    return mtu or None


def _software(system: System) -> Iterator[tuple[str, str | None]]:
    yield "python", platform.python_version()
    for name in (*COMPARED, *_FURTHER_PACKAGES):
        yield name, system.package(name.replace("_", "-"))
    kit = loaded_toolkit(system)
    installed = ", ".join(sorted({each.version for each in system.versions.toolkits if each.version}))
    yield "CANN", kit.version if kit else say("{versions} (not loaded)", versions=installed) if installed else None
    yield "firmware", system.versions.firmware_version


def _variables(system: System) -> Iterator[tuple[str, str | None]]:
    for name, value in sorted(system.env.items()):
        if _VARIABLE.fullmatch(name) and name not in _OF_ONE_NODE:
            yield name, value or say("empty")


def _limits(system: System) -> Iterator[tuple[str, str | None]]:
    for name, number in _LIMITS.items():
        soft, _ = system.limits(number)
        yield name, say("unlimited") if soft == resource.RLIM_INFINITY else str(soft)


def _computer(system: System) -> Iterator[tuple[str, str | None]]:
    host = inspect_host(system.root)
    yield "operating system", host.operating_system
    yield "kernel", host.kernel
    yield "architecture", host.architecture
    yield "CPU", host.cpu_name
    yield "usable cores", str(host.cores_usable)
    # The kernel reserves a slightly different amount at each start.
    yield "memory", f"{system.memory_total_bytes / (1 << 30):.0f} GiB"
    yield "working directory", _directory(system.cwd)


def _devices(system: System) -> Iterator[tuple[str, str | None]]:
    npus = system.npu_smi[0].devices if system.has_npus else ()
    unnamed = None
    if system.npu_nodes:
        unnamed = say("{count}, which npu-smi does not name", count=len(system.npu_nodes))
    yield "NPUs", _counted(npus) or unnamed
    gpus, cuda_driver, _ = system.gpus
    yield "GPUs", _counted(gpus)
    yield "driver", system.driver_version or cuda_driver


def _counted(devices: tuple[Accelerator, ...]) -> str | None:
    """ "8 x 910B4 with 64.0 GiB"."""
    names = Counter(
        say("{name} with {memory}", name=device.name or say("unnamed"), memory=format_bytes(device.memory_total_bytes))
        for device in devices
    )
    return ", ".join(f"{count} x {name}" for name, count in sorted(names.items())) or None


def _directory(path: Path) -> str | None:
    if not path.is_dir():
        return None
    return str(path) if os.access(path, os.W_OK) else say("{path} (not writable)", path=path)
