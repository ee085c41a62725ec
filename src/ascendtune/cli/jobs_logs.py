"""`ascendtune jobs logs`"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ascendtune.cli.job_display import JobId


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this rank.")] = None,
    lines: Annotated[int, typer.Option(metavar="N", min=0, help="The last N lines of each rank; 0: all.")] = 50,
) -> int:
    """Print what the processes of a job say, with the rank in front of each line.

    \b
    ascendtune jobs logs alpaca
    ascendtune jobs logs alpaca -f --rank 3

    Ctrl-C ends the printing, not the job. Rank 0 of a training that was not detached writes to its terminal. Exit
    code 1: there was no log to print.
    """
    from ascendtune.cli.job_display import show_lines
    from ascendtune.cli.messages import warn
    from ascendtune.core.errors import InputError
    from ascendtune.job.follow import follow as followed
    from ascendtune.job.follow import has_the_terminal, logs_of, missing_logs
    from ascendtune.job.hang.hang_report import ranks
    from ascendtune.job.record import state_of
    from ascendtune.job.registry import find, reread

    found = find(job, newest=True)

    def is_over() -> bool:
        return not follow or state_of(reread(found)) in ("ended", "lost")

    if rank is not None and rank >= found.nproc and found.is_local and not logs_of(found.logs, rank):
        raise InputError(
            f"{found.id} has no rank {rank}", code="unknown-rank", remedy=f"name one from 0 to {found.nproc - 1}"
        )
    if rank in (None, 0) and has_the_terminal(found):
        print(f"rank 0 writes to the terminal where {found.id} was started", file=sys.stderr)
    if (missing := missing_logs(found, rank)) and is_over():
        warn(f"no log of {ranks(missing)} is in {found.logs}: it was removed, or never written")
    show_lines(followed(found.logs, is_over, began=found.log_sizes, last=lines or None, rank=rank))
    return 0 if logs_of(found.logs, rank) else 1
