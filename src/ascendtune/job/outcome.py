"""How did a job of several processes end? The cause, in place of the launcher's account of its own troubles."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import AscendtuneError, CheckFailed, InputError, MachineError, NoVerdict, disk_fault
from ascendtune.core.files import ask_disk
from ascendtune.core.rundir import RunDir

_CLASSES: dict[int, type[AscendtuneError]] = {2: InputError, 3: MachineError, 4: NoVerdict}
_ROOT_CAUSE = re.compile(r"rank\s*: (\d+) \(local_rank.*?exitcode\s*: (-?\d+)", re.DOTALL)


@dataclass(frozen=True)
class Outcome:
    """The exit code for the user's shell, and what the user has not been told yet."""

    exit_code: int
    error: AscendtuneError | None = None
    cause: str | None = None
    """What a rank gave as its reason; None where no rank could say anything."""

    @property
    def is_failure(self) -> bool:
        """Something broke: neither the end nor a stop, nor a recipe that will be as wrong next time."""
        return self.exit_code not in (0, InputError.exit_code) and self.exit_code < 128


@dataclass(frozen=True)
class Ending:
    """What the launcher of a node left behind."""

    exit_code: int
    """torchrun's, or the program's own where it ran alone; negative for a signal."""
    launcher_log: Path | None
    """None where the program ran alone."""
    said_before: int = 0
    """Length of `launcher_log` before this attempt, in bytes."""
    host: str | None = None
    """Named where there are several."""
    lost: AscendtuneError | None = None
    """Why nothing was heard of the node's end."""


def record_of(run_dir: Path) -> dict[str, Any] | None:
    """run.json, or None where the job keeps none."""
    run = RunDir(run_dir)
    return run.read() if run.run_json.is_file() else None


def outcome(run_dir: Path, before: dict[str, Any] | None, ending: Ending, asked: signal.Signals | None) -> Outcome:
    """The cause from run.json; where the workers could not write one, from what the launcher saw.

    Args:
        before: run.json as it was before the attempt; an old cause must not explain a new failure.
        ending: of the node that failed first.
        asked: the signal that asked the job to stop.
    """
    if ending.exit_code == 0:
        return Outcome(0)
    record = record_of(run_dir)
    if before is not None and record is None:
        try:
            RunDir(run_dir).require_present()
        except MachineError as removed:
            return Outcome(removed.exit_code, removed)
    cause = record.get("exit_cause") if record and record != before else None
    # Ranks on other hosts are asked to stop when one host fails: that they did is not why the job ended.
    is_echo = cause and cause["exit_code"] > 128 and ending.host and not asked
    if cause and not is_echo:
        return _told(run_dir, cause)
    if record and record != before and record.get("state") == "stopped" and not is_echo:
        return Outcome(128 + (asked or signal.SIGTERM))
    if asked:
        close(run_dir, "stopped", None)
        return Outcome(128 + asked)
    error, code = _seen(ending, run_dir / "log")
    close(run_dir, "failed", error)
    # Whoever keeps no run.json speaks by the exit code alone.
    return Outcome(error.exit_code if record else code, error)


def _told(run_dir: Path, cause: dict[str, Any]) -> Outcome:
    code, rank = int(cause.get("exit_code", 1)), cause.get("rank")
    if rank == 0 or code > 128:
        # Rank 0 has the terminal and has said it; a stop is said by every rank.
        return Outcome(code, cause=cause["what"])
    error = _CLASSES.get(code, CheckFailed)(
        f"rank {rank}: {cause['what']}" if rank is not None else cause["what"],
        remedy=cause["remedy"],
        where=run_dir / "log" / f"rank_{rank}.log" if rank is not None else run_dir,
    )
    return Outcome(code, error, cause["what"])


def _seen(ending: Ending, logs: Path) -> tuple[AscendtuneError, int]:
    """What happened, and the exit code of the process to which it happened, as a shell would tell it."""
    at = f" on {ending.host}" if ending.host else ""
    if ending.lost is not None:
        return ending.lost, ending.lost.exit_code
    if ending.launcher_log is None:
        return _death("the worker", ending.exit_code, logs), as_of_a_shell(ending.exit_code)
    said = _said(ending.launcher_log, ending.said_before)
    roots = _ROOT_CAUSE.findall(said[said.rfind("Root Cause") :]) if "Root Cause" in said else []
    if not roots and ending.exit_code < 0:
        return _death(f"torchrun{at}", ending.exit_code, ending.launcher_log), as_of_a_shell(ending.exit_code)
    if not roots:
        error: AscendtuneError = _full_disk(logs) or CheckFailed(
            f"the processes{at} could not be started or lost each other",
            remedy="look at what torchrun says",
            where=ending.launcher_log,
        )
        return error, error.exit_code
    rank, code = int(roots[0][0]), int(roots[0][1])
    log = logs / f"rank_{rank}.log"
    return _death(f"rank {rank}{at}", code, log if log.exists() else ending.launcher_log), as_of_a_shell(code)


def _full_disk(logs: Path) -> MachineError | None:
    """Why torchrun could not write what happened, where that is why."""
    try:
        ask_disk(logs)
    except OSError as error:
        return disk_fault(error, logs, "writing the logs")
    return None


def as_of_a_shell(code: int) -> int:
    """The exit code of a process, negative for a signal, as a shell tells it."""
    return 128 - code if code < 0 else code


def _death(who: str, code: int, where: Path) -> AscendtuneError:
    if code == -signal.SIGKILL:
        return CheckFailed(
            f"{who} was killed (SIGKILL)",
            remedy="usually the host ran out of memory: `dmesg | grep -i oom` tells; take a smaller batch",
            where=where,
        )
    if code < 0:
        return CheckFailed(
            f"{who} crashed ({signal.Signals(-code).name})", remedy="look at the end of its log", where=where
        )
    return CheckFailed(f"{who} ended with exit code {code}", remedy="look at the end of its log", where=where)


def _said(launcher_log: Path, said_before: int) -> str:
    with launcher_log.open("rb") as file:
        file.seek(said_before)
        return file.read().decode(errors="replace")


def close(run_dir: Path, state: Any, error: AscendtuneError | None) -> None:
    """Note the end of an attempt whose workers could not: everything has ended, so nobody else writes run.json."""
    run = RunDir(run_dir)
    if run.run_json.is_file() and run.read()["state"] in ("created", "running", "stopped"):
        run.end_attempt(state, _cause(error) if error else None)


def _cause(error: AscendtuneError) -> dict[str, Any]:
    return {"what": error.what, "remedy": error.remedy, "exit_code": error.exit_code, "rank": None}
