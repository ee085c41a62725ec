"""Host memory that this process may use: of the machine, or of its control group (container, Slurm step, pod)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import psutil

from ascendtune.core.files import text_of

_FILES = {
    "": ("/sys/fs/cgroup", "memory.max"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
}
"""Controller in /proc/self/cgroup (empty for cgroup v2) -> root of the groups, and the file."""


def memory_limit(read: Callable[[str], str]) -> int | None:
    """The lowest limit in bytes of this process's control group and its parents; None if there is none.

    Args:
        read: returns the content of a file; empty if it cannot be read.
    """
    groups = dict.fromkeys(_FILES, "/")
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= {name: path for name in controllers.split(",") if name in _FILES}
    limits = [
        read(f"{_FILES[name][0]}/{each}/{_FILES[name][1]}").strip()
        for name, path in groups.items()
        # In a container the path may be that of the host, and the root the container's own group.
        for each in (PurePath(path), *PurePath(path).parents)
    ]
    return min((int(number) for number in limits if number.isdecimal() and int(number) < 1 << 60), default=None)


def usable_memory_bytes() -> int:
    """Memory of this machine, or the limit of this process's control group if that is less."""
    total: int = psutil.virtual_memory().total
    limit = memory_limit(text_of)
    return total if limit is None else min(total, limit)
