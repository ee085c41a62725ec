"""Leftover processes of earlier jobs: without a parent, and with a job's mark or a device.

No process is chosen by its name, and only the user's own processes are ended.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core import process_tree, procfs
from ascendtune.job import registry
from ascendtune.job.device_memory_holders import DeviceMemoryHolder, devices_of
from ascendtune.job.members import MarkedProcess, handle, mark_of, marked_processes, still_running
from ascendtune.job.record import is_alive, state_of
from ascendtune.machine.inventory import Accelerator, local_pid

_DEVICE_FILES = re.compile(r"(?:davinci|nvidia)\d+")
_TERMINATE_SECONDS = 10.0
_KILL_SECONDS = 5.0
_LOOK_EVERY_SECONDS = 0.2


@dataclass(frozen=True)
class Leftover:
    """A process whose job is over, or whose parent has ended."""

    stat: procfs.Stat
    uid: int | None
    command: str
    job_id: str | None
    """The job whose mark it has; None: it is listed because it uses a device."""
    devices: tuple[str, ...]
    memory_used_bytes: int | None
    """On all its devices; None if no vendor's tool reports it."""
    is_of_our_job: bool
    """Whether the job is in this registry, and over. A job of another registry may still run."""

    @property
    def is_ours(self) -> bool:
        """Whether it belongs to the user, and to a job in the user's registry."""
        return self.is_of_our_job and self.may_be_ended

    @property
    def may_be_ended(self) -> bool:
        return self.uid == os.getuid()


def find_leftovers(devices: Sequence[Accelerator], dev: Path = Path("/dev")) -> list[Leftover]:
    """Processes left behind by jobs, oldest first.

    Args:
        devices: devices of the machine, with the processes that their vendors' tools list.
        dev: directory of device files.
    """
    found = {stat.pid: (stat, job_id) for stat, job_id in (*_marked(), *_holding(devices, dev))}
    for pid in _spared():
        found.pop(pid, None)
    memory = devices_of(list(found), devices)
    known = {job.id for job in registry.jobs()}
    described = [_described(stat, job_id, memory.get(stat.pid, []), dev, known) for stat, job_id in found.values()]
    return sorted(described, key=lambda each: each.stat.start_ticks)


def end(chosen: Sequence[Leftover]) -> list[procfs.Stat]:
    """Send SIGTERM, then SIGKILL to those that did not end; returns those that still run.

    Processes of other users are not signalled.
    """
    left = still_running([each.stat for each in chosen if each.may_be_ended])
    for number, seconds in ((signal.SIGTERM, _TERMINATE_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        process_tree.send([found for stat in left if (found := handle(stat))], number)
        deadline = time.monotonic() + seconds
        while (left := still_running(left)) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_SECONDS)
    return left


def _marked() -> Iterator[tuple[procfs.Stat, str | None]]:
    """Processes of jobs that are over."""
    known = {job.id: job for job in registry.jobs()}
    for each in marked_processes():
        job = known.get(each.job_id)
        if job is None:
            # The job is in the registry of another machine or container, or was removed from this one.
            is_over = _has_lost_its_parent(_highest(each))
        else:
            is_over = state_of(job) in ("ended", "lost")
        if is_over:
            yield each.stat, each.job_id


def _highest(marked: MarkedProcess) -> procfs.Stat:
    """The topmost ancestor among the processes of the same job."""
    highest = marked.stat
    while (parent := procfs.stat_of(highest.parent)) and mark_of(parent.pid) == marked.job_id:
        highest = parent
    return highest


def _holding(devices: Sequence[Accelerator], dev: Path) -> Iterator[tuple[procfs.Stat, str | None]]:
    """Processes that use a device and whose parent has ended."""
    listed = {local_pid(entry) for device in devices for entry in device.processes}
    has_files = any(_DEVICE_FILES.fullmatch(path.name) for path in dev.iterdir())
    for stat in procfs.stats():
        if (
            (stat.pid in listed or (has_files and _device_files(stat.pid, dev)))
            and _has_lost_its_parent(stat)
            and mark_of(stat.pid) is None
            and not procfs.is_service(stat.pid)
        ):
            yield stat, None


def _has_lost_its_parent(stat: procfs.Stat) -> bool:
    """Whether another process has adopted it.

    A process starts in its parent's session. It is in another one if its parent is not the one that started it, or if
    it has created its own session: then its parent has ended if its parent is process 1 now.
    """
    if stat.session == stat.pid:
        return stat.parent == 1
    parent = procfs.stat_of(stat.parent)
    return parent is None or parent.session != stat.session


def _device_files(pid: int, dev: Path) -> set[str]:
    opened = (Path(name) for name in procfs.open_files(pid))
    return {path.name for path in opened if path.parent == dev and _DEVICE_FILES.fullmatch(path.name)}


def _spared() -> Collection[int]:
    """This process, its ancestors, and the processes that run jobs: a job inside another has the outer job's mark."""
    spared = {job.pid for job in registry.jobs() if is_alive(job)}
    stat = procfs.stat_of(os.getpid())
    while stat is not None:
        spared.add(stat.pid)
        stat = procfs.stat_of(stat.parent)
    return spared


def _described(
    stat: procfs.Stat, job_id: str | None, memory: Sequence[DeviceMemoryHolder], dev: Path, known: Collection[str]
) -> Leftover:
    sizes = [each.memory_used_bytes for each in memory if each.memory_used_bytes is not None]
    return Leftover(
        stat=stat,
        uid=procfs.owner_of(stat.pid),
        command=procfs.command_of(stat.pid),
        job_id=job_id,
        devices=tuple(each.device for each in memory) or tuple(sorted(_device_files(stat.pid, dev))),
        memory_used_bytes=sum(sizes) if sizes else None,
        is_of_our_job=job_id in known,
    )
