"""Run a job in the background: in a session of its own, with a log in place of the terminal."""

from __future__ import annotations

import time

from ascendtune.core.errors import InputError, MachineError, translated_disk_errors
from ascendtune.core.process import BackgroundProcess, fork_to_background
from ascendtune.job import registry
from ascendtune.job.follow import JOB_LOG
from ascendtune.job.record import Job
from ascendtune.job.spec import JobSpec

_START_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.05
_SHOWN_CHARACTERS = 2000


def detach(spec: JobSpec) -> Job | None:
    """Divide this process in two, when all is ready to start `spec`.

    Returns the job in the process that stays with the terminal, as soon as the other one has registered it; None in the
    other one, which is in the background now and is to start the job.

    Raises:
        InputError, MachineError: the log cannot be written, or the job ended before it was registered.
    """
    log = spec.logs / JOB_LOG
    with translated_disk_errors(log, "opening a log"):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        before = log.stat().st_size
    other = fork_to_background(log)
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
    said = log.read_bytes()[before:].decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
    kind = InputError if exit_code == InputError.exit_code else MachineError
    raise kind(
        f"the job did not start:\n{said}",
        code="job-not-started",
        remedy="follow its message, or try without --detach",
        where=log,
    )


def _wait(other: BackgroundProcess, job_id: str) -> int | None:
    """Until the job is registered, or its process has ended: then its exit code."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if (exit_code := other.exit_code()) is not None:
            return exit_code
        if registry.named(job_id):
            break
        time.sleep(_LOOK_EVERY_SECONDS)
    return None
