"""Memory of the host that is set aside in huge pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok
from ascendtune.core.units import format_bytes

CODE = "hugepages"

_MUCH = 0.1
"""Of the host's memory: more than that, reserved and unused, is missed when batches and checkpoints are built."""


def _look(outside: Outside) -> Iterator[Finding]:
    count = {name: _number(outside, name) for name in ("HugePages_Total", "HugePages_Free", "Hugepagesize", "MemTotal")}
    if not count["MemTotal"] or not (outside.has_npus or outside.gpus[0]):
        return
    size = count["Hugepagesize"] * 1024
    reserved, free = count["HugePages_Total"] * size, count["HugePages_Free"] * size
    if free > _MUCH * count["MemTotal"] * 1024:
        yield Finding(
            CODE,
            "warning",
            f"{format_bytes(reserved)} of host memory are reserved as huge pages, {format_bytes(free)} of it unused",
            expected="no more than is used: torch and CANN take ordinary pages",
            remedy="on the host, if nothing else needs them: sudo sysctl -w vm.nr_hugepages=0",
            evidence=(f"HugePages_Total {count['HugePages_Total']} of {format_bytes(size)}",),
        )
        return
    said = f"{format_bytes(reserved)} reserved" if reserved else "none reserved"
    transparent = re.search(r"\[(\w+)\]", outside.text("/sys/kernel/mm/transparent_hugepage/enabled"))
    yield ok(CODE, said + (f"; transparent huge pages: {transparent[1]}" if transparent else ""))


def _number(outside: Outside, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+)", outside.text("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) if found else 0


CHECK = Check(
    CODE,
    what="On a machine with accelerators: reads how much host memory is reserved as huge pages and how much of that is "
    "unused, and whether the kernel makes huge pages by itself.",
    why="Reserved huge pages are taken from everybody else, used or not. Servers that came from a database or from "
    "DPDK keep hundreds of GiB that way; `free` shows them as used, and loading a model ends by the out-of-memory "
    "killer.",
    fix="vm.nr_hugepages=0 in /etc/sysctl.d, or as many as their owner uses.",
    look=_look,
)
