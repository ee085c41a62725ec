"""`ascendtune jobs logs`"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ascendtune.cli.job_choice import JobId


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this rank.")] = None,
    lines: Annotated[int, typer.Option(metavar="N", min=0, help="The last N lines of each rank; 0: all.")] = 50,
) -> None:
    """Print what the processes of a job say, with the rank in front of each line.

    \b
    ascendtune jobs logs alpaca
    ascendtune jobs logs alpaca -f --rank 3

    Ctrl-C ends the printing, not the job. Rank 0 of a training that was not detached speaks in its own terminal.
    """
    from ascendtune.cli.job_lines import show
    from ascendtune.job.follow import JOB_LOG, logs_of
    from ascendtune.job.follow import follow as followed
    from ascendtune.job.registry import find, reread, state_of

    found = find(job)
    is_quiet = not (found.logs / JOB_LOG).exists() and 0 not in logs_of(found.logs).values()
    if is_quiet and rank in (None, 0):
        print(f"rank 0 speaks in the terminal where {found.id} was started; other logs: {found.logs}", file=sys.stderr)

    def is_over() -> bool:
        return not follow or state_of(reread(found)) in ("ended", "lost")

    show(followed(found.logs, is_over, began=found.log_sizes, last=lines or None, rank=rank))
