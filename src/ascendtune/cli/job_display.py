"""Common parts of the `jobs` commands: finding a job, and displaying jobs, processes and log lines."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.terminal import colour, width
from ascendtune.core.errors import AscendtuneError
from ascendtune.core.terminal_text import plain
from ascendtune.core.text_table import cut_lines, table_lines

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.follow import LogLine
    from ascendtune.job.record import Job

_RECENT = 32
"""Records used for the estimate of the time left."""
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def complete(incomplete: str) -> list[tuple[str, str]]:
    """Ids that begin with `incomplete`, newest first, each with the state of the job."""
    from ascendtune.job.registry import jobs

    matching = [job for job in jobs() if job.id.startswith(incomplete)]
    return [(job.id, f"{shown_state(job)}, {' '.join(job.argv[-3:])}") for job in reversed(matching)]


JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Name or id of the job, or the last four letters of its id.",
        show_default=False,
        autocompletion=complete,
    ),
]


def state_in_words(job: Job) -> str:
    """ "running", "running, silent for 4:00 (usual step 1.2 s)", "failed (1)", "lost": for `jobs list`, `show`."""
    from ascendtune.core.silent_ranks import silence_in_words

    state = shown_state(job)
    if state == "running" and (silence := silence_of(job)):
        return f"running, {silence_in_words(silence.seconds, silence.step_seconds)}"
    return f"failed ({job.exit_code})" if state == "failed" else state


def shown_state(job: Job) -> str:
    """The state of a job in the words of runs: one that ended is finished, stopped or failed, if its exit code is
    known."""
    from ascendtune.job.record import state_of

    state = state_of(job)
    if state == "ended" and job.exit_code is not None:
        words = {0: "finished", 128 + signal.SIGINT: "stopped", 128 + signal.SIGTERM: "stopped"}
        return words.get(job.exit_code, "failed")
    return state


@dataclass(frozen=True)
class Silence:
    """A running job whose ranks on this machine report nothing for much longer than a step takes."""

    seconds: float
    """Since the last heartbeat of any rank."""
    step_seconds: float | None
    """Seconds of one step in the last record; None before the first."""


def silence_of(job: Job) -> Silence | None:
    """The silence of a running job; None if its last heartbeat is recent, or its phase takes long without one."""
    from ascendtune.core.rundir import RunDir
    from ascendtune.core.silent_ranks import is_silent
    from ascendtune.job.hang.heartbeat import newest_beats

    beats = [beat for beat in newest_beats(job.run_dir) if beat.process()]
    if not beats:
        return None
    seconds = time.monotonic() - max(beat.monotonic for beat in beats)
    pace = _pace(RunDir(job.run_dir), 1)
    return Silence(seconds, pace) if all(is_silent(beat.phase, seconds, pace) for beat in beats) else None


@dataclass(frozen=True)
class Advance:
    """Progress of a job; fields are None if its run does not contain them."""

    step: int | None = None
    total_steps: int | None = None
    seconds_left: float | None = None
    """From the newest records, without evaluations, checkpoints and the export; None unless the job runs."""


def advance_of(job: Job) -> Advance:
    from ascendtune.cli.runs import total_steps, unless_damaged
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.record import attempt_of, state_of

    run = RunDir(job.run_dir)
    record = unless_damaged(run.read) if run.run_json.is_file() else None
    attempt = attempt_of(job, record) if record else None
    if record is None or attempt is None:
        return Advance()
    total = total_steps(record)
    if "ended" in attempt or attempt is not record["attempts"][-1]:
        return Advance(attempt.get("step"), total)
    step = run.last_step()
    pace = _pace(run, _RECENT) if state_of(job) == "running" else None
    left = None if step is None or total is None or pace is None else pace * max(0, total - step)
    return Advance(step, total, left)


def _pace(run: RunDir, records: int) -> float | None:
    """Seconds of a step, from the newest records; None if they do not contain it."""

    with suppress(AscendtuneError, OSError, LookupError, TypeError, ValueError, ArithmeticError):
        # A record covers the steps since the previous one. Other programs may have written them.
        newest = run.newest_metrics(records + 1)
        before = newest[0]["step"] if len(newest) > records else 0
        counted = newest[-records:]
        return float(sum(each["seconds"]["step"] for each in counted) / (counted[-1]["step"] - before))
    return None


def devices_in_words(job: Job) -> str:
    """ "npu 0,1", "npu x 8", "cpu x 2"."""
    return f"{job.kind} {','.join(job.device_ids)}" if job.device_ids else f"{job.kind} x {job.nproc}"


def moment(seconds: float | None) -> str:
    """A date and a time of day, for people."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def show_lines(lines: Iterable[LogLine]) -> None:
    """Print lines on stdout as they arrive. Lines of the job itself have no prefix."""
    for line in lines:
        shown = plain(line.text)
        if line.rank is None:
            print(shown, flush=True)
        else:
            prefix = f"[rank {line.rank}]"
            # Our workers print their rank themselves.
            text = shown.removeprefix(f"{prefix} ")
            print(f"{colour(prefix, _COLOURS[line.rank % len(_COLOURS)], sys.stdout)} {text}", flush=True)


def show_while_read(lines: Iterable[LogLine], logs: Path) -> None:
    """`show_lines` for a job that continues if its output cannot be written: the reader has ended, as in `| head`, or
    it is a file on a full disk. `logs` contain everything.
    """
    from ascendtune.core.log import warn

    try:
        show_lines(lines)
    except OSError as error:
        # The buffered output would fail again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            warn(f"the job's output is not shown any more: {error.strerror}; it is kept in {logs}")


def process_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    commands: Sequence[str],
    *,
    right: Sequence[str],
    title: str = "command",
) -> str:
    """`table` with a last column; on a terminal without the program's directory, and cut at the terminal's width."""
    limit = width(sys.stdout)
    if limit is not None:
        commands = [_without_folder(command) for command in commands]
    whole = [[*row, command] for row, command in zip(rows, commands, strict=True)]
    lines = table_lines([*header, title], whole, limit=None, right=right)
    return "\n".join(lines if limit is None else cut_lines(lines, limit))


def _without_folder(command: str) -> str:
    program, blank, words = command.partition(" ")
    return program.rpartition("/")[2] + blank + words
