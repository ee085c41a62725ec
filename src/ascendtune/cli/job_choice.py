"""Which job is meant: what a shell completes, and how a job is called in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ascendtune.job.record import Job


def complete(incomplete: str) -> list[tuple[str, str]]:
    """Ids that begin so, the newest first, each with what has become of the job."""
    from ascendtune.job.record import state_of
    from ascendtune.job.registry import jobs

    fitting = [job for job in jobs() if job.id.startswith(incomplete)]
    return [(job.id, f"{state_of(job)}, {' '.join(job.argv[-3:])}") for job in reversed(fitting)]


JobId = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Its id, or the beginning of it.", show_default=False, autocompletion=complete),
]


def state_in_words(job: Job) -> str:
    """ "running", "ended (exit code 1)", "lost": what `jobs list` and `jobs show` say."""
    from ascendtune.job.record import state_of

    state = state_of(job)
    if state == "ended" and job.exit_code is not None:
        return "finished" if job.exit_code == 0 else f"ended ({job.exit_code})"
    return state


def devices_in_words(job: Job) -> str:
    """ "npu 0,1", "npu x 8", "cpu x 2"."""
    return f"{job.kind} {','.join(job.device_ids)}" if job.device_ids else f"{job.kind} x {job.nproc}"


def moment(seconds: float | None) -> str:
    """A date and a time of day, for people."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
