"""`ascendtune jobs show`"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ascendtune.cli.job_display import JobId
from ascendtune.cli.options import AsJson
from ascendtune.cli.terminal import print_json

if TYPE_CHECKING:
    from ascendtune.job.record import Job


def show(
    job: JobId,
    as_json: AsJson = False,
) -> None:
    """Show one job: its processes and devices now, how far it is, its logs, and why it ended.

    \b
    ascendtune jobs show alpaca
    """
    from ascendtune.job.registry import find

    found = find(job, newest=True)
    facts = _facts(found)
    print_json(facts) if as_json else print("\n".join(_lines(found, facts)))


def _facts(job: Job) -> dict[str, Any]:
    from ascendtune.cli import runs
    from ascendtune.core.rundir import RunDir
    from ascendtune.job.record import attempt_of, state_of

    run = RunDir(job.run_dir)
    record = run.read_if_any() or None
    attempt = attempt_of(job, record) if record else None
    is_newest = record is not None and attempt is not None and attempt is record["attempts"][-1]
    last = run.last_metrics() if is_newest else None
    return {
        **job.as_json(),
        "state": state_of(job),
        "processes": processes_of(job),
        "run_state": runs.state_of(record) if record else None,
        "given_command": record.get("argv") if record and is_newest else None,
        "step": last["step"] if last else attempt.get("step") if attempt else None,
        "loss": last.get("loss") if last else None,
        "exit_cause": record.get("exit_cause") if record and is_newest else None,
        "log_files": {str(path): path.stat().st_size for path in sorted(job.logs.glob("*.log"))},
    }


def processes_of(job: Job) -> list[dict[str, Any]]:
    """What the job's processes on this machine are and hold, now."""
    from ascendtune.core import procfs
    from ascendtune.job.device_memory_holders import devices_of
    from ascendtune.job.members import members_of
    from ascendtune.machine.snapshot import take_snapshot
    from ascendtune.machine.vendor.find import vendor_of

    members = members_of(job)
    devices = take_snapshot().devices if members and vendor_of(job.kind).is_accelerator else ()
    held = devices_of([stat.pid for stat in members], devices)
    return [
        {
            "pid": stat.pid,
            "rank": _rank(procfs.environment_of(stat.pid).get("RANK")),
            "state": stat.state,
            "age_seconds": stat.age_seconds,
            "memory_used_bytes": procfs.memory_of(stat.pid),
            "devices": {each.device: each.memory_used_bytes for each in held.get(stat.pid, ())},
            "command": procfs.command_of(stat.pid),
        }
        for stat in members
    ]


def _rank(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _lines(job: Job, facts: dict[str, Any]) -> list[str]:
    from ascendtune.cli.job_display import devices_in_words, moment, state_in_words
    from ascendtune.core.units import count_of, format_bytes

    cause = facts["exit_cause"] if facts["state"] != "running" else None
    progress = [f"run {facts['run_state']}"] if facts["run_state"] else []
    if facts["step"] is not None:
        progress.append(f"step {facts['step']:,}" + ("" if facts["loss"] is None else f", loss {facts['loss']:.4f}"))
    given = facts["given_command"]
    shown = {
        # The one to give again; the job's own is that of its process.
        "command": shlex.join(map(str, given)) if isinstance(given, list) else " ".join(job.argv),
        "devices": devices_in_words(job),
        "hosts": ", ".join(job.hosts) + (f"; started from {job.started_from}" if job.started_from else ""),
        "started": moment(job.started),
        "ended": moment(job.ended) if job.ended else None,
        "directory": str(job.run_dir),
        "progress": ", ".join(progress),
        "cause": cause["what"] if cause else None,
        "do": cause.get("remedy") if cause else None,
    }
    lines = [f"{job.id}: {state_in_words(job)}, {count_of(len(facts['processes']), 'process', 'processes')}"]
    lines += [f"  {name.ljust(9)}  {value}" for name, value in shown.items() if value]
    if facts["processes"]:
        lines += ["", processes_in_lines(facts["processes"])]
    logs = [f"  {path}  {format_bytes(size)}" for path, size in facts["log_files"].items()]
    return [*lines, *(["", "logs", *logs] if logs else [])]


def processes_in_lines(processes: list[dict[str, Any]]) -> str:
    """One line a process."""
    from ascendtune.cli.job_display import process_table
    from ascendtune.core.units import format_bytes, format_duration

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
