"""Shared by the commands on jobs: completion of ids, jobs and log lines as text, `--detach`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.terminal import colour
from ascendtune.core.safe_text import plain
from ascendtune.job.follow import Line

if TYPE_CHECKING:
    from ascendtune.job.record import Job
    from ascendtune.job.spec import JobSpec


def complete(incomplete: str) -> list[tuple[str, str]]:
    """Ids with this prefix, the newest first, each with the state of the job."""
    from ascendtune.job.record import state_of
    from ascendtune.job.registry import jobs

    fitting = [job for job in jobs() if job.id.startswith(incomplete)]
    return [(job.id, f"{state_of(job)}, {' '.join(job.argv[-3:])}") for job in reversed(fitting)]


JobId = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Its id, or a prefix of it.", show_default=False, autocompletion=complete),
]


def state_in_words(job: Job) -> str:
    """ "running", "ended (exit code 1)", "lost": the state in `jobs list` and `jobs show`."""
    from ascendtune.job.record import state_of

    state = state_of(job)
    if state == "ended" and job.exit_code is not None:
        return "finished" if job.exit_code == 0 else f"ended ({job.exit_code})"
    return state


def devices_in_words(job: Job) -> str:
    """ "npu 0,1", "npu x 8", "cpu x 2"."""
    return f"{job.kind} {','.join(job.device_ids)}" if job.device_ids else f"{job.kind} x {job.nproc}"


def moment(seconds: float | None) -> str:
    """Local date and time; `seconds` since the epoch."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def show(lines: Iterable[Line]) -> None:
    """Print lines on stdout as they arrive, with the rank as a coloured prefix; lines of the job itself have none."""
    for line in lines:
        shown = plain(line.text)
        if line.rank is None:
            print(shown, flush=True)
        else:
            prefix = f"[rank {line.rank}]"
            # Our own worker prints its rank itself.
            text = shown.removeprefix(f"{prefix} ")
            print(f"{colour(prefix, _COLOURS[line.rank % len(_COLOURS)], sys.stdout)} {text}", flush=True)


def show_while_read(lines: Iterable[Line]) -> None:
    """`show` for a job that continues when the reader closes the pipe, as in `| head`; the log files stay complete."""
    with suppress(BrokenPipeError):
        show(lines)


def stays_with_the_terminal(spec: JobSpec) -> bool:
    """Fork: True in the process that keeps the terminal, after the other has started the job."""
    from ascendtune.job.detach import detach

    job = detach(spec)
    if job is None:
        return False
    print(f"{job.id} runs in the background")
    print(f"directory: {job.run_dir}")
    print(f"   follow: ascendtune jobs logs -f {job.id}")
    print(f"     stop: ascendtune jobs stop {job.id}")
    return True
