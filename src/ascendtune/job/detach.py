"""Runs a job in the background: in its own session, with a log instead of the terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.errors import InputError, MachineError, translated_disk_errors
from ascendtune.job import registry
from ascendtune.job.follow import JOB_LOG
from ascendtune.job.record import Job
from ascendtune.job.spec import JobSpec

_START_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.05
_SHOWN_CHARACTERS = 2000


def detach(spec: JobSpec) -> Job | None:
    """Fork into the background, when everything is ready to start `spec`.

    Returns the job in the process that stays with the terminal, as soon as the other one has registered it; None in the
    other one, which is in the background and must start the job.

    Raises:
        InputError, MachineError: the log cannot be written, or the job ended before it was registered.
    """
    log = spec.logs / JOB_LOG
    with translated_disk_errors(log, "opening a log"):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        before = log.stat().st_size
    other = _fork_to_background(log)
    if other is None:
        return None
    try:
        exit_code = _wait(other, spec.id)
    except KeyboardInterrupt:
        other.end()
        raise
    if job := registry.named(spec.id):
        return job
    if exit_code is None:
        other.end()
    output = log.read_bytes()[before:].decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
    kind = InputError if exit_code == InputError.exit_code else MachineError
    raise kind(
        f"the job did not start:\n{output}",
        code="job-not-started",
        remedy="follow its message, or try without --detach",
        where=log,
    )


@dataclass(frozen=True)
class _BackgroundProcess:
    """The forked process in the background, as the process that stays with the terminal uses it."""

    pid: int

    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs. Must not be called again after a code."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def end(self) -> None:
        """Send SIGTERM. Must not be called after `exit_code` returned a code."""
        os.kill(self.pid, signal.SIGTERM)


def _fork_to_background(log: Path) -> _BackgroundProcess | None:
    """Fork. Returns None in the background process: it has its own session, which signals of the terminal do not reach,
    no input, and appends its output to `log`.
    """
    # Buffered output would otherwise be written by both processes.
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return _BackgroundProcess(pid)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.close(nothing)
    os.close(output)
    return None


def _wait(other: _BackgroundProcess, job_id: str) -> int | None:
    """Wait until the job is registered, or its process has ended: then return its exit code."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if (exit_code := other.exit_code()) is not None:
            return exit_code
        if registry.named(job_id):
            break
        time.sleep(_LOOK_EVERY_SECONDS)
    return None
