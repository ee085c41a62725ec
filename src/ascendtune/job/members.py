"""Finds the processes of a job: descendants of the process that started them, and processes with the job's mark.

The processes of a job have the variable ASCENDTUNE_JOB in their environment, so that they are recognised when their
parents have ended; the first one, which the registry names, need not have it. The mark does not suffice: the process
must also belong to this user, and be younger than the job.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psutil

from ascendtune.core import procfs
from ascendtune.core.rundir import JOB_MARK
from ascendtune.job.record import Job, is_alive


@dataclass(frozen=True)
class MarkedProcess:
    """A process with the mark of a job."""

    stat: procfs.Stat
    job_id: str


def mark_of(pid: int, otherwise: str | None = None) -> str | None:
    """The id of the job whose mark the process has; `otherwise` if it has none."""
    return procfs.environment_of(pid).get(JOB_MARK, otherwise)


def marked_processes() -> Iterator[MarkedProcess]:
    """This user's processes with the mark of any job."""
    for stat in procfs.stats():
        if procfs.owner_of(stat.pid) == os.getuid() and (job_id := mark_of(stat.pid)):
            yield MarkedProcess(stat, job_id)


def driver_of(job: Job) -> procfs.Stat | None:
    """The process that the registry names, if it still runs; a later process with its pid does not count."""
    return procfs.stat_of(job.pid) if is_alive(job) else None


def members_of(job: Job) -> list[procfs.Stat]:
    """The processes of the job on this machine, oldest first; empty if its pids have no meaning here.

    A process that a process of another job started belongs to that job, even if this job started the other one.
    """
    if is_alive(job) is None:
        return []
    driver = driver_of(job)
    processes = {stat.pid: stat for stat in procfs.stats()}
    members = {driver.pid} if driver else set()
    for stat in processes.values():
        if stat.start_ticks >= job.start_ticks and mark_of(stat.pid) == job.id:
            members.add(stat.pid)
    if driver:
        members |= {pid for pid in _below(driver.pid, processes) if mark_of(pid, job.id) == job.id}
    own = (processes[pid] for pid in members if pid in processes and procfs.owner_of(pid) == job.uid)
    return sorted(own, key=lambda stat: stat.start_ticks)


def ranks_of(job: Job) -> dict[int, procfs.Stat]:
    """Rank -> its process on this machine, for ranks that have begun; their children have the same rank variable."""
    members = members_of(job)
    ranks = {stat.pid: procfs.environment_of(stat.pid).get("RANK") for stat in members}
    if not any(ranks.values()) and not job.watched:
        ranks[job.pid] = "0"
    return {
        int(rank): stat
        for stat in members
        if (rank := ranks[stat.pid]) and rank.isdecimal() and ranks.get(stat.parent) != rank
    }


def handle(stat: procfs.Stat) -> psutil.Process | None:
    """A handle for sending signals, which refuses if another process has the pid now. None if the process has ended."""
    try:
        process = psutil.Process(stat.pid)
    except psutil.NoSuchProcess:
        return None
    # Checked after psutil opened it: the process found now is not older than psutil's.
    return process if still_running([stat]) else None


def still_running(stats: Iterable[procfs.Stat]) -> list[procfs.Stat]:
    """The processes that have not ended, with their current state."""
    now = ((stat, procfs.stat_of(stat.pid)) for stat in stats)
    return [current for stat, current in now if current is not None and current.start_ticks == stat.start_ticks]


def _below(root: int, processes: dict[int, procfs.Stat]) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in processes.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return found
