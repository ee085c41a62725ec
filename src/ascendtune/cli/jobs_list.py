"""`ascendtune jobs list`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.options import AsJson
from ascendtune.cli.terminal import print_json

if TYPE_CHECKING:
    from ascendtune.job.record import Job


def list_jobs(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over, of the last two weeks.")] = False,
    as_json: AsJson = False,
) -> None:
    """List your jobs that run, the newest last.

    \b
    ascendtune jobs list
    ascendtune jobs list --all --json

    The other commands take a job's name, its id, or the last four letters of the id. State "lost": the job's process
    ended without a record, as after a kill or a restart of the machine; "unknown": it runs on another machine;
    "silent": no rank has reported progress for several times as long as a step takes.
    """
    from ascendtune.job.record import state_of
    from ascendtune.job.registry import jobs

    known = list(jobs())
    shown = [job for job in known if everything or state_of(job) in ("running", "unknown")]
    if as_json:
        facts = [{**job.as_json(), "state": state_of(job), "silent_seconds": _silent_seconds(job)} for job in shown]
        print_json(facts)
    elif shown:
        _print(shown)
    else:
        print("no job runs" + (f"; --all lists {len(known)} that did" if known else ""))


def _silent_seconds(job: Job) -> float | None:
    from ascendtune.cli.job_display import silence_of
    from ascendtune.job.record import state_of

    silence = silence_of(job) if state_of(job) == "running" else None
    return silence.seconds if silence else None


def _print(shown: list[Job]) -> None:
    from ascendtune.cli.job_display import devices_in_words, moment, state_in_words
    from ascendtune.cli.terminal import table
    from ascendtune.core.units import format_duration
    from ascendtune.job.record import seconds_of

    rows = []
    for job in shown:
        step = _step(job)
        rows.append(
            [
                job.id,
                state_in_words(job),
                devices_in_words(job),
                ",".join(job.hosts),
                moment(job.started),
                format_duration(seconds_of(job)),
                "-" if step is None else f"{step:,}",
            ]
        )
    header = ["job", "state", "devices", "hosts", "started", "time", "step"]
    # An id is copied, so it is shown whole.
    print(table(header, rows, right=["time", "step"], spare=["hosts", "started", "devices", "time", "step"]))


def _step(job: Job) -> int | None:
    """How far the job has come; None where its run cannot be read, or does not tell."""
    from ascendtune.cli.runs import unless_damaged
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.record import attempt_of

    run = RunDir(job.run_dir)
    record = unless_damaged(run.read) if run.run_json.is_file() else None
    attempt = attempt_of(job, record) if record else None
    if record is None or attempt is None:
        return None
    return attempt.get("step") if "ended" in attempt or attempt is not record["attempts"][-1] else run.last_step()
