"""`ascendtune jobs stop`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.job_display import JobId

if TYPE_CHECKING:
    from ascendtune.job.record import Job
    from ascendtune.job.stop import StopResult


def stop(
    job: JobId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal nothing is asked.")] = False,
    # A large checkpoint takes minutes on a file server.
    grace: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long a checkpoint may take.")] = 300,
) -> int:
    """Stop a job: SIGINT, which writes a checkpoint; then SIGTERM, then SIGKILL, each only if needed.

    \b
    ascendtune jobs stop alpaca
    ascendtune jobs stop alpaca --yes --grace 30

    Then checks that its processes are gone and the memory of its devices is free. Exit code 1: they are not.
    """
    from ascendtune.cli.job_display import moment, state_in_words
    from ascendtune.cli.jobs_show import processes_in_lines, processes_of
    from ascendtune.cli.progress import ProgressBar
    from ascendtune.core.units import count_of
    from ascendtune.job.record import state_of
    from ascendtune.job.registry import find
    from ascendtune.job.stop import require_ours
    from ascendtune.job.stop import stop as end

    found = find(job)
    require_ours(found)
    processes = processes_of(found)
    if not processes and state_of(found) != "running":
        since = f" since {moment(found.ended)}" if found.ended else ""
        print(f"{found.id} does not run: {state_in_words(found)}{since}")
        return 0
    print(f"{found.id}: {state_in_words(found)}, {count_of(len(processes), 'process', 'processes')}, {found.run_dir}")
    print(processes_in_lines(processes), flush=True)
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
    return _told(found, result)


def _told(job: Job, result: StopResult) -> int:
    from ascendtune.cli.messages import warn
    from ascendtune.core import procfs
    from ascendtune.core.units import format_bytes
    from ascendtune.machine.vendor.find import vendor_of

    for stat in result.survivors:
        hangs = "; it hangs in the kernel, and only a reset of its device, or of the machine, ends it"
        warn(f"pid {stat.pid} did not end ({procfs.command_of(stat.pid)}){hangs if stat.state == 'D' else ''}")
    for held in result.held:
        whose = f"by pid {held.pid}, which has ended" if held.pid else "by a process that is not visible here"
        warn(f"{held.device}: {format_bytes(held.memory_used_bytes)} still held, {whose}")
    if result.survivors or result.held:
        return 1
    freed = ", the memory of its devices is free" if vendor_of(job.kind).is_accelerator else ""
    how = "; some had to be killed" if result.was_killed else ""
    print(f"{job.id} has ended: every process is gone{freed}{how}")
    return 0
