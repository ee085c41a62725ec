"""The newest attempt of a run directory: its state, its logs, and the cause of its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ascendtune.check.explain.language import say
from ascendtune.check.recorded_cause import cause_in_words
from ascendtune.core.errors import CheckFailed, Stopped
from ascendtune.core.exit_cause import exit_cause
from ascendtune.core.rundir import RunDir
from ascendtune.job.hang.heartbeat import newest_beats
from ascendtune.job.record import Job, is_alive, state_of
from ascendtune.job.registry import jobs
from ascendtune.machine.npu.plog import plogs_of

Cause = dict[str, Any]


@dataclass(frozen=True)
class Newest:
    """The newest attempt of a run."""

    logs: tuple[tuple[str, int], ...] = ()
    """Files, each with the offset in bytes at which the attempt begins; earlier attempts are before it."""
    cause: Cause | None = None
    """Cause of its failure: `exit_cause` of run.json."""
    stop: Cause | None = None
    """`exit_cause` of run.json, if it was asked to stop."""
    is_running: bool = False
    is_here: bool = False
    """Whether all its processes were on this machine."""
    plogs: tuple[str, ...] = ()
    """CANN's own logs of its ranks on this machine."""


def newest_attempt(run: RunDir) -> Newest:
    """Read the newest attempt of a run.

    Raises:
        MachineError: run.json is damaged.
    """
    record, job = run.read(), _newest_job(run)
    state = state_of(job) if job is not None else "unknown"
    is_here = job is not None and job.is_local and is_alive(job) is not None
    plogs = tuple(_plogs(run, job))
    if state == "running":
        return Newest(tuple(_logs(run, job)), is_running=True, is_here=is_here, plogs=plogs)
    if record["state"] == "finished":
        # Failures in its logs belong to earlier attempts, or to ranks that a stop interrupted.
        return Newest()
    cause = record.get("exit_cause")
    if job is not None and state == "lost" and (cause is None or record["state"] == "stopped"):
        # Workers are asked to stop after their starter has ended: that is not the cause.
        return Newest(tuple(_logs(run, job)), _vanished(job, cause), is_here=is_here, plogs=plogs)
    if record["state"] == "stopped":
        return Newest(stop=cause or _stopped())
    return Newest(tuple(_logs(run, job)), cause, is_here=is_here, plogs=plogs)


def _newest_job(run: RunDir) -> Job | None:
    place = run.path.resolve()
    return next((job for job in reversed([*jobs()]) if job.run_dir == place), None)


def _logs(run: RunDir, job: Job | None) -> Iterator[tuple[str, int]]:
    for path in sorted(run.logs.glob("*.log")):
        before = job.log_sizes.get(path.name, 0) if job is not None else 0
        # A shorter file is a new file.
        yield str(path), before if before <= path.stat().st_size else 0


def _plogs(run: RunDir, job: Job | None) -> Iterator[str]:
    if job is not None:
        pids = {beat.pid for beat in newest_beats(run.path)}
        yield from map(str, plogs_of(pids, os.environ, since=job.started))


def _vanished(job: Job, stop: Cause | None) -> Cause:
    after = say("; its workers were then {what}", what=cause_in_words(stop).what) if stop else ""
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.started))
    error = CheckFailed(
        say(
            "the process that started the run ended without recording why (started {began}, pid {pid}){after}",
            began=began,
            pid=job.pid,
            after=after,
        ),
        code="starter-lost",
        remedy=say(
            "it was killed (kill -9, out of host memory, a container that was removed), ended at once by Ctrl-C before "
            "its first step, or the host restarted: see `dmesg | grep -i oom` and `last reboot`; the same command "
            "resumes from the newest checkpoint, if there is one"
        ),
    )
    return exit_cause("lost_starter", error, host=job.host)


def _stopped() -> Cause:
    """Cause for a job that was killed before its workers could record one."""
    error = Stopped(
        say("the run was asked to stop"),
        remedy=say("the same command resumes from its newest checkpoint, if there is one"),
        signal_number=signal.SIGTERM,
    )
    return exit_cause("stop", error)
