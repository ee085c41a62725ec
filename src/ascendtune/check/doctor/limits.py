"""Limits of the host on this process: open files, processes, memory, shared memory, huge pages."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, ok, unknown, warning
from ascendtune.core.units import format_bytes
from ascendtune.machine.host_memory import memory_limit

LIMITS = "limits"

_WANTED = {"open files": ("-n", resource.RLIMIT_NOFILE, 4096), "processes": ("-u", resource.RLIMIT_NPROC, 4096)}
"""Sufficient for torchrun with 8 ranks, their data loaders and threads."""


def _look_at_limits(system: System) -> Iterator[Finding]:
    described = []
    found = []
    for name, (flag, number, wanted) in _WANTED.items():
        soft, hard = system.limits(number)
        described.append(f"{say(name)} {_shown(soft)}")
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            continue
        remedy = say("ulimit {flag} {wanted}", flag=flag, wanted=wanted)
        if hard != resource.RLIM_INFINITY and hard < wanted:
            remedy = say(
                "raise it in /etc/security/limits.conf, log in again (container: --ulimit {value}=65536)",
                value="nofile" if flag == "-n" else "nproc",
            )
        what = say("at most {soft} {name} (hard limit {hard})", soft=soft, name=say(name), hard=_shown(hard))
        found.append(warning(LIMITS, what, expected=say("{wanted} or more", wanted=wanted), remedy=remedy))
    yield from found
    if not found:
        yield ok(LIMITS, ", ".join(described))


def _shown(limit: int) -> str:
    return say("unlimited") if limit == resource.RLIM_INFINITY else str(limit)


LIMITS_CHECK = Check(
    LIMITS,
    what="Reads the limits on open files and on processes of this shell.",
    why="Eight ranks with data loaders and a process group open thousands of files and start thousands of threads. "
    "Beyond the limit, single ranks fail with `Too many open files` or `can't start new thread`, minutes into the job.",
    fix="`ulimit -n 65536` in the shell or job script; permanently in /etc/security/limits.conf, or `--ulimit` of the "
    "container.",
    look=_look_at_limits,
)


MEMORY_LIMIT = "memory_limit"

_PER_DEVICE_BYTES = 16 << 30
"""Host memory of a rank that loads a 7B model in bf16: the weights, and a margin."""


def _look_at_memory_limit(system: System) -> Iterator[Finding]:
    total = system.memory_total_bytes
    limit = memory_limit(system.text)
    usable = total if limit is None else min(limit, total)
    devices = len(system.npu_nodes) or len(system.gpus[0])
    where = (
        ""
        if limit is None or limit >= total
        else say(", the control group's limit ({total} in total)", total=format_bytes(total))
    )
    measured = say("{usable} of host memory{where}", usable=format_bytes(usable), where=where)
    wanted = devices * _PER_DEVICE_BYTES
    if usable < wanted:
        yield warning(
            MEMORY_LIMIT,
            measured,
            expected=say(
                "{wanted} for {devices} devices: each rank loads the weights through host memory",
                wanted=format_bytes(wanted),
                devices=devices,
            ),
            remedy=say("raise the container's --memory (Kubernetes: resources.limits.memory)")
            if where
            else say("train with fewer devices at a time, or a smaller model"),
        )
    else:
        cores = len(os.sched_getaffinity(0))
        yield ok(MEMORY_LIMIT, say("{memory}, {count} {count:core|cores}", memory=measured, count=cores))


MEMORY_LIMIT_CHECK = Check(
    MEMORY_LIMIT,
    what="Reads the memory limit of the control group (container, Slurm step, pod) and compares it with the memory "
    "that the ranks need to load a model.",
    why="Beyond the limit, the kernel kills one rank without a message (exit code -9); the others wait for it until "
    "the time-out, and the log points to HCCL.",
    fix="Raise the limit of the container, pod or Slurm step.",
    look=_look_at_memory_limit,
)


SHARED_MEMORY = "shared_memory"

_ENOUGH_BYTES = 1 << 30
"""Docker's default is 64 MiB; data loader workers with batches of text need far less than 1 GiB per card."""


def _look_at_shared_memory(system: System) -> Iterator[Finding]:
    place = system.path("/dev/shm")
    try:
        free, total = system.space(place)
    except OSError as error:
        yield unknown(
            SHARED_MEMORY, say("/dev/shm: {strerror}", strerror=error.strerror), remedy=say("mount a tmpfs at /dev/shm")
        )
        return
    if free < _ENOUGH_BYTES:
        yield warning(
            SHARED_MEMORY,
            say("/dev/shm has {free} free of {total}", free=format_bytes(free), total=format_bytes(total)),
            expected=say("{enough_bytes} or more", enough_bytes=format_bytes(_ENOUGH_BYTES)),
            remedy=say("start the container with --shm-size=16g")
            if system.in_container
            else say("delete leftovers in /dev/shm, or: sudo mount -o remount,size=50% /dev/shm"),
        )
    else:
        yield ok(
            SHARED_MEMORY,
            say("/dev/shm has {free} free of {total}", free=format_bytes(free), total=format_bytes(total)),
        )


SHARED_MEMORY_CHECK = Check(
    SHARED_MEMORY,
    what="Checks the free space of /dev/shm.",
    why="A container gets 64 MiB by default. Data loader workers and process groups then fail with a bus error "
    "(SIGBUS) that does not mention shared memory. Crashed jobs leave files there.",
    fix="Start the container with `--shm-size`; on a host remove leftover files or enlarge the tmpfs.",
    look=_look_at_shared_memory,
)


HUGEPAGES = "hugepages"

_MUCH = 0.1
"""Tolerated share of the host's memory in unused huge pages."""


def _look_at_hugepages(system: System) -> Iterator[Finding]:
    meminfo = dict(re.findall(r"^(\w+):\s*(\d+)", system.text("/proc/meminfo"), re.MULTILINE))
    names = ("HugePages_Total", "HugePages_Free", "Hugepagesize", "MemTotal")
    count = {name: int(meminfo.get(name, 0)) for name in names}
    if not count["MemTotal"] or not (system.has_npus or system.gpus[0]):
        return
    size = count["Hugepagesize"] * 1024
    reserved, free = count["HugePages_Total"] * size, count["HugePages_Free"] * size
    if free > _MUCH * count["MemTotal"] * 1024:
        yield warning(
            HUGEPAGES,
            say(
                "{reserved} of host memory are reserved as huge pages, {free} of them unused",
                reserved=format_bytes(reserved),
                free=format_bytes(free),
            ),
            expected=say("no unused huge pages: torch and CANN use ordinary pages"),
            remedy=say("on the host, if no other program needs them: sudo sysctl -w vm.nr_hugepages=0"),
            evidence=(f"HugePages_Total {count['HugePages_Total']} of {format_bytes(size)}",),
        )
        return
    measured = say("{reserved} reserved", reserved=format_bytes(reserved)) if reserved else say("none reserved")
    transparent = re.search(r"\[(\w+)\]", system.text("/sys/kernel/mm/transparent_hugepage/enabled"))
    yield ok(
        HUGEPAGES,
        measured + (say("; transparent huge pages: {transparent}", transparent=transparent[1]) if transparent else ""),
    )


HUGEPAGES_CHECK = Check(
    HUGEPAGES,
    what="On a machine with accelerators: reads how much host memory is reserved as huge pages, how much of that is "
    "unused, and whether transparent huge pages are on.",
    why="Reserved huge pages are not available to other programs, even if they are unused. Servers configured for a "
    "database or DPDK reserve hundreds of GiB; `free` shows them as used, and the out-of-memory killer stops jobs that "
    "load a model.",
    fix="vm.nr_hugepages=0 in /etc/sysctl.d, or as many as the program that uses them needs.",
    look=_look_at_hugepages,
)
