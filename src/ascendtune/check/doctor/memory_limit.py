"""How much of the host's memory, and how many of its cores, this control group may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePath

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok
from ascendtune.core.units import format_bytes

CODE = "memory_limit"

_PER_DEVICE_BYTES = 16 << 30
"""Host memory that a rank takes while a 7B model is loaded in bf16: its weights, and room."""
_FILES = {
    "": ("/sys/fs/cgroup", "memory.max"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
}
"""Controller in /proc/self/cgroup (version 2 of control groups names none) -> where groups are, and the file."""


def _look(outside: Outside) -> Iterator[Finding]:
    total = outside.memory_total_bytes
    limit = _limit(outside)
    usable = total if limit is None else min(limit, total)
    devices = len(outside.npu_nodes) or len(outside.gpus[0])
    where = "" if limit is None or limit >= total else f", the control group's limit ({format_bytes(total)} in all)"
    told = f"{format_bytes(usable)} of host memory{where}"
    wanted = devices * _PER_DEVICE_BYTES
    if usable < wanted:
        yield Finding(
            CODE,
            "warning",
            told,
            expected=f"{format_bytes(wanted)} for {devices} devices: each rank loads the weights through host memory",
            remedy="raise the container's --memory (Kubernetes: resources.limits.memory)"
            if where
            else "train with fewer devices at a time, or a smaller model",
        )
    else:
        yield ok(CODE, f"{told}, {len(os.sched_getaffinity(0))} cores")


def _limit(outside: Outside) -> int | None:
    """The lowest of this process's control group and those around it; "max" and numbers beyond any memory are none."""
    groups = dict.fromkeys(_FILES, "/")
    for line in outside.text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= {name: path for name in controllers.split(",") if name in _FILES}
    told = [
        outside.text(f"{_FILES[name][0]}/{each}/{_FILES[name][1]}").strip()
        for name, path in groups.items()
        # In a container the path may be the host's, and the root the container's own group.
        for each in (PurePath(path), *PurePath(path).parents)
    ]
    return min((int(number) for number in told if number.isdecimal() and int(number) < 1 << 60), default=None)


CHECK = Check(
    CODE,
    what="Reads the memory limit of the control group (container, Slurm step, pod) and compares it with what the ranks "
    "need while they load a model.",
    why="Past the limit the kernel kills one rank without a message of its own (exit code -9); the others then wait "
    "for it until the time-out, and the log blames HCCL.",
    fix="Raise the limit of the container, pod or Slurm step.",
    look=_look,
)
