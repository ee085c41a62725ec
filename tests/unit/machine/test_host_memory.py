"""The memory limit of control groups, of both versions."""

from __future__ import annotations

from pathlib import PurePath
from types import SimpleNamespace

import psutil
import pytest

from ascendtune.machine import host_memory
from ascendtune.machine.host_memory import memory_limit, usable_memory_bytes

_V2 = {"/proc/self/cgroup": "0::/user/job\n", "/sys/fs/cgroup/user/job/memory.max": "max\n"}
_V1 = {"/proc/self/cgroup": "7:cpu,cpuacct:/a\n5:memory:/slurm/step\n"}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        (_V2, None),
        ({**_V2, "/sys/fs/cgroup/user/memory.max": "9000"}, 9000),
        ({**_V2, "/sys/fs/cgroup/memory.max": "700", "/sys/fs/cgroup/user/memory.max": "9000"}, 700),
        ({**_V1, "/sys/fs/cgroup/memory/slurm/step/memory.limit_in_bytes": "4096"}, 4096),
        ({**_V1, "/sys/fs/cgroup/memory/slurm/step/memory.limit_in_bytes": str((1 << 63) - 4096)}, None),
    ],
)
def test_the_lowest_limit_of_the_group_and_its_parents_counts(files: dict[str, str], limit: int | None) -> None:
    assert memory_limit(lambda path: files.get(str(PurePath(path)), "")) == limit


def test_usable_memory_is_at_most_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1000))
    for limit, usable in ((None, 1000), (300, 300), (5000, 1000)):
        monkeypatch.setattr(host_memory, "memory_limit", lambda _, limit=limit: limit)
        assert usable_memory_bytes() == usable
