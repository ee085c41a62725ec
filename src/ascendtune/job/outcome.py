"""How did a job of several processes end? The cause, in place of the launcher's account of its own troubles."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import AscendtuneError, FoundWrong, InputError, MachineError, NoVerdict
from ascendtune.core.rundir import RunDir

_CLASSES: dict[int, type[AscendtuneError]] = {2: InputError, 3: MachineError, 4: NoVerdict}
_ROOT_CAUSE = re.compile(r"rank\s*: (\d+) \(local_rank.*?exitcode\s*: (-?\d+)", re.DOTALL)


@dataclass(frozen=True)
class Outcome:
    """The exit code for the user's shell, and what the user has not been told yet."""

    exit_code: int
    error: AscendtuneError | None = None


def record_of(run_dir: Path) -> dict[str, Any] | None:
    """run.json, or None where the job keeps none."""
    run = RunDir(run_dir)
    return run.read() if run.run_json.is_file() else None


def outcome(
    run_dir: Path, before: dict[str, Any] | None, agent_code: int, asked: signal.Signals | None, said_before: int
) -> Outcome:
    """The cause from run.json; where the workers could not write one, from what torchrun saw.

    Args:
        before: run.json as it was before the job; an old cause must not explain a new failure.
        agent_code: torchrun's exit code, negative for a signal.
        asked: the signal that asked the job to stop.
        said_before: length of launcher.log before the job, in bytes.
    """
    if agent_code == 0:
        return Outcome(0)
    record = record_of(run_dir)
    cause = record.get("exit_cause") if record and record != before else None
    if cause:
        return _told(run_dir, cause)
    if record and record != before and record.get("state") == "stopped":
        return Outcome(128 + (asked or signal.SIGTERM))
    if asked:
        _close(run_dir, "stopped", None)
        return Outcome(128 + asked)
    error = _seen_by_torchrun(run_dir / "log", said_before)
    _close(run_dir, "failed", {"what": error.what, "remedy": error.remedy, "exit_code": error.exit_code, "rank": None})
    return Outcome(error.exit_code, error)


def _told(run_dir: Path, cause: dict[str, Any]) -> Outcome:
    code, rank = int(cause.get("exit_code", 1)), cause.get("rank")
    if rank == 0 or code > 128:
        # Rank 0 has the terminal and has said it; a stop is said by every rank.
        return Outcome(code)
    error = _CLASSES.get(code, FoundWrong)(
        f"rank {rank}: {cause['what']}" if rank is not None else cause["what"],
        remedy=cause["remedy"],
        where=run_dir / "log" / f"rank_{rank}.log" if rank is not None else run_dir,
    )
    return Outcome(code, error)


def _seen_by_torchrun(logs: Path, said_before: int) -> AscendtuneError:
    launcher_log = logs / "launcher.log"
    with launcher_log.open("rb") as file:
        file.seek(said_before)
        said = file.read().decode(errors="replace")
    roots = _ROOT_CAUSE.findall(said[said.rfind("Root Cause") :]) if "Root Cause" in said else []
    if not roots:
        return FoundWrong(
            "the processes could not be started or lost each other",
            remedy="look at what torchrun says",
            where=launcher_log,
        )
    rank, code = int(roots[0][0]), int(roots[0][1])
    where = logs / f"rank_{rank}.log" if rank else launcher_log
    if code == -signal.SIGKILL:
        return FoundWrong(
            f"rank {rank} was killed (SIGKILL)",
            remedy="usually the host ran out of memory: `dmesg | grep -i oom` tells; take a smaller batch",
            where=where,
        )
    if code < 0:
        name = signal.Signals(-code).name
        return FoundWrong(f"rank {rank} crashed ({name})", remedy="look at the end of its log", where=where)
    return FoundWrong(f"rank {rank} ended with exit code {code}", remedy="look at the end of its log", where=where)


def _close(run_dir: Path, state: Any, cause: dict[str, Any] | None) -> None:
    """Everything has ended, so nobody else writes run.json any more."""
    run = RunDir(run_dir)
    if run.run_json.is_file() and run.read()["state"] == "running":
        run.end_attempt(state, cause)
