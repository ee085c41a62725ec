"""`ascendtune jobs stacks`"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.job_display import complete
from ascendtune.cli.options import AsJson
from ascendtune.cli.terminal import print_json

if TYPE_CHECKING:
    from ascendtune.core.procfs import Stat


def stacks(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB|RUN", help="A job's id, or a run directory.", show_default=False, autocompletion=complete
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show where each rank of a running job is, and keep the Python stacks of all its threads.

    \b
    ascendtune jobs stacks runs/alpaca-qwen

    Training is not interrupted. py-spy reads the stacks if it is installed and has permission. Otherwise the workers of
    `ascendtune train` write their own stacks; programs under `ascendtune launch` need py-spy. Only ranks on this
    machine are read; the stacks are written into the job's log directory.
    """
    from ascendtune.core.errors import InputError
    from ascendtune.job.hang.hang_report import HangReport
    from ascendtune.job.hang.heartbeat import beats_of
    from ascendtune.job.hang.stacks import collect

    directory, workers = _meant(job)
    beats = beats_of(directory, workers)
    if not any(beat.process() for beat in beats):
        hosts = sorted({beat.host for beat in beats} - {socket.gethostname()})
        raise InputError(
            "no process of this run is alive on this machine",
            code="run-not-alive",
            remedy=f"run the command on a host of the run: {', '.join(hosts)}"
            if hosts
            else "give one that runs: `ascendtune jobs list`",
            where=directory,
        )
    place, taken = collect(directory, beats)
    verdict = HangReport(tuple(beats), tuple(taken), place)
    print_json(verdict.as_json()) if as_json else print("\n".join(verdict.lines()))


def _meant(text: str) -> tuple[Path, dict[int, Stat]]:
    """The run directory of a job, or the one named; and its processes by rank, as far as they are registered here."""
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.members import ranks_of
    from ascendtune.job.registry import find, jobs

    if not Path(text).is_dir():
        job = find(text)
        return job.run_dir, ranks_of(job)
    run = RunDir.open(text)
    here = [job for job in jobs() if job.run_dir == run.path.resolve()]
    return run.path, ranks_of(here[-1]) if here else {}
