"""`ascendtune jobs list`, `show`, `logs`, `stacks` and `stop`"""

from __future__ import annotations

import shlex
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.job_display import (
    JobId,
    advance_of,
    complete,
    devices_in_words,
    moment,
    process_table,
    show_lines,
    shown_state,
    silence_of,
    state_in_words,
)
from ascendtune.cli.messages import warn
from ascendtune.cli.options import AsJson
from ascendtune.cli.terminal import print_json, table, width
from ascendtune.core.errors import InputError
from ascendtune.core.terminal_text import wrapped
from ascendtune.core.units import count_of, format_bytes, format_duration

if TYPE_CHECKING:
    from ascendtune.core.procfs import Stat
    from ascendtune.job.record import Job
    from ascendtune.job.stop import StopResult


def list_jobs(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over, of the last two weeks.")] = False,
    as_json: AsJson = False,
) -> None:
    """List your running jobs, newest last.

    \b
    ascendtune jobs list
    ascendtune jobs list --all --json

    The other commands take a job's name, its id, or the last four letters of the id. State "lost": the job's process
    ended without a record, as after a kill or a restart of the machine; "unknown": it runs on another machine;
    "silent": no rank has reported progress for several times the duration of a step.
    """
    from ascendtune.job.record import state_of
    from ascendtune.job.registry import jobs

    known = list(jobs())
    shown = [job for job in known if everything or state_of(job) in ("running", "unknown")]
    if as_json:
        facts = [
            {
                **job.as_json(),
                "state": shown_state(job),
                "silent_seconds": _silent_seconds(job),
                **asdict(advance_of(job)),
            }
            for job in shown
        ]
        print_json(facts)
    elif shown:
        _print_jobs(shown)
    else:
        print("no job runs" + (f"; --all lists {len(known)} that did" if known else ""))


def _silent_seconds(job: Job) -> float | None:
    from ascendtune.job.record import state_of

    silence = silence_of(job) if state_of(job) == "running" else None
    return silence.seconds if silence else None


def _print_jobs(shown: list[Job]) -> None:
    from ascendtune.cli.runs import steps_in_words
    from ascendtune.job.record import seconds_of

    rows = []
    for job in shown:
        advance = advance_of(job)
        rows.append(
            [
                job.id,
                state_in_words(job),
                devices_in_words(job),
                ",".join(job.hosts),
                moment(job.started),
                format_duration(seconds_of(job)),
                "-" if advance.seconds_left is None else format_duration(advance.seconds_left),
                steps_in_words(advance.step, advance.total_steps),
            ]
        )
    header = ["job", "state", "devices", "hosts", "started", "time", "left", "step"]
    # Ids are shown completely, so that they can be copied.
    spare = ["hosts", "started", "devices", "time", "left", "step"]
    print(table(header, rows, right=["time", "left", "step"], spare=spare))


def show(
    job: JobId,
    as_json: AsJson = False,
) -> None:
    """Show one job: its processes and devices, its progress, its logs, and why it ended.

    \b
    ascendtune jobs show alpaca
    """
    from ascendtune.job.registry import find

    found = find(job)
    facts = _facts_of(found)
    print_json(facts) if as_json else print("\n".join(_lines_of(found, facts)))


def _facts_of(job: Job) -> dict[str, Any]:
    from ascendtune.cli import runs
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.record import attempt_of

    run = RunDir(job.run_dir)
    record = run.read_if_any() or None
    attempt = attempt_of(job, record) if record else None
    is_newest = record is not None and attempt is not None and attempt is record["attempts"][-1]
    last = run.last_metrics() if is_newest else None
    return {
        **job.as_json(),
        "state": shown_state(job),
        "processes": _processes_of(job),
        "run_state": runs.state_of(record) if record else None,
        "given_command": record.get("argv") if record and is_newest else None,
        **asdict(advance_of(job)),
        "loss": runs.number(last.get("loss")) if last else None,
        "exit_cause": record.get("exit_cause") if record and is_newest else None,
        "log_files": {str(path): path.stat().st_size for path in sorted(job.logs.glob("*.log"))},
    }


def _processes_of(job: Job) -> list[dict[str, Any]]:
    """The job's processes on this machine, with their resources, now."""
    from ascendtune.core import procfs
    from ascendtune.job.device_memory_holders import devices_of
    from ascendtune.job.members import members_of
    from ascendtune.machine.snapshot import take_snapshot
    from ascendtune.machine.vendor.find import vendor_of

    members = members_of(job)
    devices = take_snapshot().devices if members and vendor_of(job.kind).is_accelerator else ()
    memory = devices_of([stat.pid for stat in members], devices)
    return [
        {
            "pid": stat.pid,
            "rank": _rank(procfs.environment_of(stat.pid).get("RANK")),
            "state": stat.state,
            "age_seconds": stat.age_seconds,
            "memory_used_bytes": procfs.memory_of(stat.pid),
            "devices": {each.device: each.memory_used_bytes for each in memory.get(stat.pid, ())},
            "command": procfs.command_of(stat.pid),
        }
        for stat in members
    ]


def _rank(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _lines_of(job: Job, facts: dict[str, Any]) -> list[str]:
    from ascendtune.cli.runs import steps_in_words

    cause = facts["exit_cause"] if facts["state"] != "running" else None
    progress = [f"run {facts['run_state']}"] if facts["run_state"] else []
    if facts["step"] is not None:
        progress.append(f"step {steps_in_words(facts['step'], facts['total_steps'])}")
    if facts["loss"] is not None:
        progress.append(f"loss {facts['loss']:.4f}")
    if facts["seconds_left"] is not None:
        progress.append(f"{format_duration(facts['seconds_left'])} left")
    given = facts["given_command"]
    shown = {
        # The command to repeat; the job's own is that of its process.
        "command": shlex.join(map(str, given)) if isinstance(given, list) else " ".join(job.argv),
        "devices": devices_in_words(job),
        "hosts": ", ".join(job.hosts) + (f"; started from {job.started_from}" if job.started_from else ""),
        "started": moment(job.started),
        "ended": moment(job.ended) if job.ended else None,
        "directory": str(job.run_dir),
        "progress": ", ".join(progress),
        "cause": cause.get("what") if cause else None,
        "do": cause.get("remedy") if cause else None,
    }
    lines = [f"{job.id}: {state_in_words(job)}, {count_of(len(facts['processes']), 'process', 'processes')}"]
    columns = width(sys.stdout)
    lines += [wrapped(f"  {name.ljust(9)}  {value}", columns, indent=13) for name, value in shown.items() if value]
    if facts["processes"]:
        lines += ["", _process_lines(facts["processes"])]
    logs = [f"  {path}  {format_bytes(size)}" for path, size in facts["log_files"].items()]
    return [*lines, *(["", "logs", *logs] if logs else [])]


def _process_lines(processes: list[dict[str, Any]]) -> str:
    """One line per process."""
    rows = [
        [
            str(each["pid"]),
            "-" if each["rank"] is None else str(each["rank"]),
            format_duration(each["age_seconds"]),
            format_bytes(each["memory_used_bytes"]),
            ", ".join(f"{name} {format_bytes(used)}" for name, used in each["devices"].items()) or "-",
        ]
        for each in processes
    ]
    commands = [each["command"] for each in processes]
    header = ["pid", "rank", "age", "memory", "devices"]
    return process_table(header, rows, commands, right=["pid", "rank", "age", "memory"])


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this rank.")] = None,
    lines: Annotated[int, typer.Option(metavar="N", min=0, help="The last N lines of each rank; 0: all.")] = 50,
) -> int:
    """Print the output of a job's processes, with the rank before each line.

    \b
    ascendtune jobs logs alpaca
    ascendtune jobs logs alpaca -f --rank 3

    Ctrl-C ends the output, not the job. Rank 0 of a training that was not detached writes to its terminal. Exit
    code 1: there was no log to print.
    """
    from ascendtune.job.follow import follow as followed
    from ascendtune.job.follow import has_the_terminal, logs_of, missing_logs
    from ascendtune.job.hang.hang_report import ranks
    from ascendtune.job.record import state_of
    from ascendtune.job.registry import find, reread

    found = find(job)

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


def stacks(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB|RUN", help="A job's id, or a run directory.", show_default=False, autocompletion=complete
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show where each rank of a running job is, and save the Python stacks of all its threads.

    \b
    ascendtune jobs stacks runs/alpaca-qwen

    Training is not interrupted. py-spy reads the stacks if it is installed and has permission. Otherwise the workers of
    `ascendtune train` write their own stacks; programs under `ascendtune launch` need py-spy. Only ranks on this
    machine are read; the stacks are written into the job's log directory.
    """
    from ascendtune.job.hang.hang_report import HangReport
    from ascendtune.job.hang.heartbeat import beats_of
    from ascendtune.job.hang.stacks import collect

    directory, workers = _run_and_ranks(job)
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
    place, collected = collect(directory, beats)
    verdict = HangReport(tuple(beats), tuple(collected), place)
    print_json(verdict.as_json()) if as_json else print("\n".join(verdict.lines()))


def _run_and_ranks(text: str) -> tuple[Path, dict[int, Stat]]:
    """The run directory of a job, or the named one; and its processes by rank, if they are registered here."""
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.members import ranks_of
    from ascendtune.job.registry import find, jobs

    if not RunDir(Path(text)).run_json.exists():
        job = find(text)
        return job.run_dir, ranks_of(job)
    run = RunDir.open(text)
    jobs_of_run = [job for job in jobs() if job.run_dir == run.path.resolve()]
    return run.path, ranks_of(jobs_of_run[-1]) if jobs_of_run else {}


def stop(
    job: JobId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal nothing is asked.")] = False,
    # A large checkpoint takes minutes on a file server.
    grace: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time for writing a checkpoint.")] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and do not ask.")] = False,
) -> int:
    """Stop a job: SIGINT, which writes a checkpoint; then SIGTERM, then SIGKILL, each only if needed.

    \b
    ascendtune jobs stop alpaca
    ascendtune jobs stop alpaca --yes --grace 30

    Then verifies that its processes have ended and the memory of its devices is free. Exit code 1: they have not.
    """
    from ascendtune.core.progress_bar import ProgressBar
    from ascendtune.job.record import state_of
    from ascendtune.job.registry import find
    from ascendtune.job.stop import require_stoppable
    from ascendtune.job.stop import stop as end

    found = find(job)
    require_stoppable(found)
    processes = _processes_of(found)
    if not processes and state_of(found) != "running":
        since = f" since {moment(found.ended)}" if found.ended else ""
        if as_json:
            print_json(_stop_as_plain(found, [], None))
        else:
            print(f"{found.id} does not run: {state_in_words(found)}{since}")
        return 0
    if not as_json:
        count = count_of(len(processes), "process", "processes")
        print(f"{found.id}: {state_in_words(found)}, {count}, {found.run_dir}")
        print(_process_lines(processes), flush=True)
        if not yes and sys.stdin.isatty() and not typer.confirm("Stop it?"):
            return 1
    with ProgressBar(sys.stderr) as progress:
        try:
            result = end(
                found,
                grace_seconds=grace,
                say=progress.say,
                show=lambda what, waited, limit: progress.show(f"waiting {what}, seconds", int(waited), int(limit)),
            )
        except KeyboardInterrupt:
            print(f"not waited for: {found.id} may still be writing a checkpoint", file=sys.stderr)
            raise
    if as_json:
        print_json(_stop_as_plain(found, processes, result))
    else:
        _print_outcome(found, result)
    return 0 if result.is_complete else 1


def _stop_as_plain(job: Job, processes: list[dict[str, Any]], result: StopResult | None) -> dict[str, Any]:
    """The stopped job and what is left of it; `result` is None if there was nothing to stop."""
    from ascendtune.core import procfs
    from ascendtune.job.registry import reread

    survivors = result.survivors if result else ()
    return {
        "job": job.id,
        "run_dir": str(job.run_dir),
        "state": shown_state(reread(job)),
        "processes": processes,
        "survivors": [
            {"pid": each.pid, "state": each.state, "command": procfs.command_of(each.pid)} for each in survivors
        ],
        "memory_holders": [asdict(each) for each in result.memory_holders] if result else [],
        "was_killed": result.was_killed if result else False,
    }


def _print_outcome(job: Job, result: StopResult) -> None:
    from ascendtune.core import procfs
    from ascendtune.machine.vendor.find import vendor_of

    for stat in result.survivors:
        hangs = "; it hangs in the kernel, and only a reset of its device, or of the machine, ends it"
        warn(f"pid {stat.pid} did not end ({procfs.command_of(stat.pid)}){hangs if stat.state == 'D' else ''}")
    for holder in result.memory_holders:
        whose = f"by pid {holder.pid}, which has ended" if holder.pid else "by a process that is not visible here"
        warn(f"{holder.device}: {format_bytes(holder.memory_used_bytes)} still in use, {whose}")
    if not result.is_complete:
        return
    freed = ", the memory of its devices is free" if vendor_of(job.kind).is_accelerator else ""
    how = "; some had to be killed" if result.was_killed else ""
    print(f"{job.id} has ended: every process is gone{freed}{how}")
