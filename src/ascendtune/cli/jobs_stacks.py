"""`ascendtune jobs stacks`"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.job_choice import complete
from ascendtune.cli.options import AsJson

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir


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

    Training goes on undisturbed. py-spy reads the stacks where it is installed and allowed; otherwise the workers write
    them. Only ranks on this machine are asked; the stacks are written into the run's directory of logs.
    """
    from ascendtune.core.errors import InputError
    from ascendtune.job.hang.heartbeat import newest_beats
    from ascendtune.job.hang.stacks import collect
    from ascendtune.job.hang.verdict import Verdict

    run = _run_of(job)
    beats = newest_beats(run.path)
    if not any(beat.process() for beat in beats):
        hosts = sorted({beat.host for beat in beats} - {socket.gethostname()})
        raise InputError(
            "no process of this run is alive on this machine",
            remedy=f"ask where it runs: {', '.join(hosts)}" if hosts else "give one that runs: `ascendtune jobs list`",
            where=run.path,
        )
    directory, taken = collect(run.path, beats)
    verdict = Verdict(tuple(beats), tuple(taken), directory)
    print(json.dumps(verdict.as_json(), indent=2, ensure_ascii=False) if as_json else "\n".join(verdict.lines()))


def _run_of(job: str) -> RunDir:
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.registry import find

    return RunDir.open(job) if Path(job).is_dir() else RunDir(find(job).run_dir)
