"""How much of the host's memory, and how many of its cores, this control group may use."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok
from ascendtune.core.units import format_bytes

CODE = "memory_limit"

_PER_DEVICE_BYTES = 16 << 30
"""Host memory that a rank takes while a 7B model is loaded in bf16: its weights, and room."""


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
    """Version 2, then version 1 of control groups; "max" and numbers beyond any memory are no limit."""
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        told = outside.text(place).strip()
        if told.isdigit():
            return int(told) if int(told) < 1 << 60 else None
    return None


CHECK = Check(
    CODE,
    what="Reads the memory limit of the control group (container, Slurm step, pod) and compares it with what the ranks "
    "need while they load a model.",
    why="Past the limit the kernel kills one rank without a message of its own (exit code -9); the others then wait "
    "for it until the time-out, and the log blames HCCL.",
    fix="Raise the limit of the container, pod or Slurm step.",
    look=_look,
)
