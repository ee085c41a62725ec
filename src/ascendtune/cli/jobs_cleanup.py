"""`ascendtune jobs cleanup`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.messages import warn
from ascendtune.cli.terminal import print_json
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.units import format_bytes, format_duration

if TYPE_CHECKING:
    from ascendtune.job.cleanup import Leftover


def cleanup(
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="End all leftovers of your own jobs, without asking.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; ends nothing without --yes.")
    ] = False,
) -> int:
    """Find leftover processes of earlier jobs, and end those that you select.

    \b
    ascendtune jobs cleanup
    ascendtune jobs cleanup --json

    Lists processes of finished jobs, and processes of any user that use a device and whose parent has ended. --yes
    ends your own processes of jobs that `jobs list --all` shows; other users' processes are never ended. Exit code 1:
    some are left.
    """
    from ascendtune.job.cleanup import end, find_leftovers
    from ascendtune.machine.snapshot import take_snapshot

    leftovers = find_leftovers(take_snapshot().devices)
    if not as_json:
        _print(leftovers)
    chosen = [each for each in leftovers if each.is_ours] if yes else [] if as_json else _picked(leftovers)
    survivors = end(chosen)
    ended = [each for each in chosen if each.stat.pid not in {stat.pid for stat in survivors}]
    if as_json:
        print_json([_as_json(each, each in ended) for each in leftovers])
    else:
        _print_result(ended, [stat.pid for stat in survivors])
    return 1 if len(ended) < len(leftovers) else 0


def _print(found: list[Leftover]) -> None:
    from ascendtune.cli.job_display import process_table
    from ascendtune.core.procfs import user_name

    if not found:
        print("no leftover processes")
        return
    rows = [
        [
            str(number),
            str(each.stat.pid),
            user_name(each.uid),
            format_duration(each.stat.age_seconds),
            _job_of(each),
            ", ".join(each.devices) or "-",
            format_bytes(each.memory_used_bytes),
        ]
        for number, each in enumerate(found, 1)
    ]
    header = ["number", "pid", "owner", "age", "job", "devices", "device memory"]
    commands = [each.command for each in found]
    print(process_table(header, rows, commands, right=["number", "pid", "age", "device memory"]), flush=True)


def _job_of(each: Leftover) -> str:
    if each.job_id is None:
        return "-"
    return each.job_id if each.is_of_our_job else f"{each.job_id} (not in your registry)"


def _picked(found: list[Leftover]) -> list[Leftover]:
    """The processes that the user selects by their numbers."""
    from ascendtune.core.procfs import user_name

    if not found:
        return []
    if not sys.stdin.isatty():
        print("nothing is ended: add --yes to end those of your own jobs", file=sys.stderr)
        return []
    words = typer.prompt("Numbers to end (as 1,3; empty: none)", default="", show_default=False)
    numbers = words.replace(",", " ").split()
    if wrong := [word for word in numbers if not word.isdecimal() or not 1 <= int(word) <= len(found)]:
        raise InputError(
            f"not a number of this list: {', '.join(wrong)}",
            code="unknown-process-number",
            remedy=f"name numbers from 1 to {len(found)}",
        )
    chosen = [found[int(word) - 1] for word in dict.fromkeys(numbers)]
    for each in chosen:
        if not each.may_be_ended:
            raise MachineError(
                f"pid {each.stat.pid} belongs to {user_name(each.uid)}; nothing was ended",
                code="owned-by-another-user",
                remedy="ask that user; this command ends only your own processes",
            )
    return chosen


def _print_result(ended: list[Leftover], survivors: list[int]) -> None:
    if ended:
        print(f"ended: {', '.join(str(each.stat.pid) for each in ended)}")
    for pid in survivors:
        warn(f"pid {pid} did not end: it hangs in the kernel; only a reset of its device, or of the machine, ends it")


def _as_json(each: Leftover, has_ended: bool) -> dict[str, Any]:
    return {
        "pid": each.stat.pid,
        "uid": each.uid,
        "age_seconds": each.stat.age_seconds,
        "command": each.command,
        "job": each.job_id,
        "is_registered": each.is_of_our_job,
        "devices": list(each.devices),
        "memory_used_bytes": each.memory_used_bytes,
        "is_ours": each.is_ours,
        "ended": has_ended,
    }
