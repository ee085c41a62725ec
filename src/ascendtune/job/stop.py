"""Ends a job: after a checkpoint, else forcibly, else at once; then checks whether all of its processes have ended.

The process that started the workers receives the signal first: it passes the first signal on to them, and ends them all
at a second one. So later signals go to the workers, and to that process only if no other is left.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ascendtune.core import process_tree, procfs
from ascendtune.core.errors import CheckFailed, InputError, MachineError
from ascendtune.core.locks import file_lock
from ascendtune.core.records import record_if_readable
from ascendtune.core.units import count_of
from ascendtune.job import registry
from ascendtune.job.device_memory_holders import DeviceMemoryHolder, holders_after
from ascendtune.job.members import driver_of, handle, members_of, still_running
from ascendtune.job.record import Job, state_of
from ascendtune.job.result import close_stopped

_TERMINATE_SECONDS = 10.0
_KILL_SECONDS = 10.0
_LOOK_EVERY_SECONDS = 0.2

Show = Callable[[str, float, float], None]
"""Called while waiting, with the reason, the elapsed seconds and the maximum."""


@dataclass(frozen=True)
class StopResult:
    """Remains of a job that was stopped: normally none."""

    survivors: tuple[procfs.Stat, ...]
    memory_holders: tuple[DeviceMemoryHolder, ...]
    was_killed: bool
    """Whether a process had to be killed: output that it had not yet written is lost."""

    @property
    def is_complete(self) -> bool:
        """Whether every process has ended and the memory of the devices is free."""
        return not self.survivors and not self.memory_holders


def stop(job: Job, *, grace_seconds: float, say: Callable[[str], None], show: Show) -> StopResult:
    """End every process of `job` on this machine; the process that started it ends those on other machines.

    Args:
        grace_seconds: time for writing a checkpoint.

    Raises:
        InputError: the job runs on another machine, or in another container.
        MachineError: a process of the job belongs to another user.
        CheckFailed: another command is stopping it.
    """
    require_stoppable(job)
    with _alone(job) as was_asked:
        seen = members_of(job)
        if driver := driver_of(job):
            if was_asked:
                say("it has already been asked to stop; a second SIGINT would end it without a checkpoint")
            else:
                _request_stop(job, driver, grace_seconds, say)
            _wait(job, seen, grace_seconds, "for a checkpoint", show)
        was_killed = _end(job, seen, say, show)
        survivors = _members(job, seen)
        if not survivors:
            _note_the_end(job, was_killed)
        memory_holders = holders_after(job, seen, _LOOK_EVERY_SECONDS)
    return StopResult(tuple(survivors), memory_holders, was_killed)


def require_stoppable(job: Job) -> None:
    """Raise unless this user may stop the job, from here; see `stop`."""
    if state_of(job) == "unknown":
        raise InputError(
            f"{job.id} runs on {job.host}, or in another container: its processes cannot be reached from here",
            code="job-not-here",
            remedy=f"run `ascendtune jobs stop {job.id}` there",
        )
    driver = driver_of(job)
    owner = procfs.owner_of(driver.pid) if driver else job.uid
    for uid in (job.uid, owner):
        if uid != os.getuid():
            place = f" (pid {driver.pid})" if driver else ""
            raise MachineError(
                f"{job.id} belongs to {procfs.user_name(uid)}{place}",
                code="owned-by-another-user",
                remedy="only its owner may stop it",
            )


def _request_stop(job: Job, driver: procfs.Stat, grace_seconds: float, say: Callable[[str], None]) -> None:
    say(f"SIGINT to pid {driver.pid}: it may write a checkpoint, for at most {grace_seconds:.0f} s")
    _send([driver], signal.SIGINT)
    # A job that was paused by Ctrl-Z handles no signal before it is continued.
    _send([driver], signal.SIGCONT)
    _record_stop(job, was_asked=True)


def _end(job: Job, seen: list[procfs.Stat], say: Callable[[str], None], show: Show) -> bool:
    """SIGTERM, then SIGKILL; processes found meanwhile are added to `seen`. True if a process had to be killed."""
    if left := _workers(job, seen):
        say(f"SIGTERM to {_pids(left)}")
        _send(left, signal.SIGTERM)
        _wait(job, seen, _TERMINATE_SECONDS, "for them to end", show)
    left = _workers(job, seen)
    if left:
        say(f"SIGKILL to {_pids(left)}")
        _send(left, signal.SIGKILL)
    if _members(job, seen):
        _wait(job, seen, _KILL_SECONDS, "for the kernel to end them", show)
    if last := _members(job, seen):
        _send(last, signal.SIGKILL)
        _wait(job, seen, _KILL_SECONDS, "for the kernel to end them", show)
    return bool(left or last)


def _members(job: Job, seen: list[procfs.Stat]) -> list[procfs.Stat]:
    """The running processes of the job, including those that have lost their parents since they were seen."""
    known = {(stat.pid, stat.start_ticks) for stat in seen}
    seen += [stat for stat in members_of(job) if (stat.pid, stat.start_ticks) not in known]
    return still_running(seen)


def _workers(job: Job, seen: list[procfs.Stat]) -> list[procfs.Stat]:
    """The processes without the one that started them, if that only watches: it ends when they have ended."""
    members = _members(job, seen)
    others = [stat for stat in members if stat.pid != job.pid]
    return others if job.watched and others else members


def _wait(job: Job, seen: list[procfs.Stat], seconds: float, what: str, show: Show) -> None:
    began = time.monotonic()
    while (still_running(seen) or _members(job, seen)) and (waited := time.monotonic() - began) < seconds:
        show(what, waited, seconds)
        time.sleep(_LOOK_EVERY_SECONDS)


def _send(stats: Sequence[procfs.Stat], number: signal.Signals) -> None:
    process_tree.send([found for stat in stats if (found := handle(stat))], number)


def _pids(stats: Sequence[procfs.Stat]) -> str:
    return f"{count_of(len(stats), 'process', 'processes')}: {', '.join(str(stat.pid) for stat in stats)}"


def _note_the_end(job: Job, was_killed: bool) -> None:
    """Used when the process that should have recorded the outcome was killed first."""
    if job.watched and state_of(registry.reread(job)) == "lost":
        registry.close(job, 128 + signal.SIGKILL)
    if was_killed and job.is_local:
        close_stopped(job.run_dir, signal.SIGTERM)


@contextmanager
def _alone(job: Job) -> Iterator[bool]:
    """Only one process stops a job; yields whether an earlier one has already asked the job to stop."""
    path = registry.lock_of(job.id)
    with file_lock(path, wait=False) as is_ours:
        note = record_if_readable(path)
        if not is_ours:
            since = time.strftime("%H:%M:%S", time.localtime(note.get("since", 0)))
            raise CheckFailed(
                f"{job.id} is being stopped already, by pid {note.get('pid', '?')} since {since}",
                code="job-being-stopped",
                remedy=f"wait for it; `ascendtune jobs show {job.id}` says what is left",
            )
        was_asked = bool(note.get("was_asked"))
        _record_stop(job, was_asked)
        yield was_asked


def _record_stop(job: Job, was_asked: bool) -> None:
    """Write a note for the next command that stops it. Written in place, as the file is the lock; skipped if it
    fails."""
    note = {"pid": os.getpid(), "since": time.time(), "was_asked": was_asked}
    with suppress(OSError):
        registry.lock_of(job.id).write_text(json.dumps(note))
