"""The result of a job of several processes: the first cause, in place of the launcher's own errors."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import (
    AscendtuneError,
    CheckFailed,
    InputError,
    MachineError,
    class_of,
    disk_fault,
)
from ascendtune.core.exit_cause import CauseKind, exit_cause, stopped_at_once
from ascendtune.core.files import NotRegular, open_regular, probe_disk
from ascendtune.core.rundir import RunDir, State

_LOST_ANOTHER = MachineError.exit_code
"""Exit code of a rank without a recorded cause: it lost its connection to another rank (`train/torch_errors.py`)."""
_LONGEST_OUTPUT = 64 << 20
"""Bytes of torchrun's output that are read."""
_FAILURE = re.compile(
    r"\btime *: (?P<time>\S+) *\n *host *: .*\n *rank *: (?P<rank>\d+) \(local_rank.*\n *exitcode *: (?P<code>-?\d+)"
)
"""A failed rank, as torchrun lists it (torch/distributed/elastic/multiprocessing/errors/__init__.py,
ChildFailedError)."""


@dataclass(frozen=True)
class SeenFailure:
    """A failure as observed from outside the workers."""

    kind: CauseKind
    error: AscendtuneError
    exit_code: int
    """Exit code of the failed process, as a shell would show it."""
    rank: int | None = None
    host: str | None = None
    signal_name: str | None = None
    ending: str = ""
    """The end of a process, such as "was killed (SIGKILL)"."""

    def cause(self) -> dict[str, Any]:
        code = self.exit_code if self.kind == "exit" else None
        return exit_cause(
            self.kind,
            self.error,
            rank=self.rank,
            host=self.host,
            signal_name=self.signal_name,
            process_exit_code=code,
        )


@dataclass(frozen=True)
class JobResult:
    """The exit code for the user's shell, and the error that has not been shown yet."""

    exit_code: int
    error: AscendtuneError | None = None
    recorded: tuple[Any, ...] | None = None
    """A rank's record of the failure, equal for equal failures: kind, code, foreign exception and last step; None if no
    rank recorded a cause."""
    failure: SeenFailure | None = None
    """The observation of a failure for which no rank recorded a cause."""

    @property
    def is_failure(self) -> bool:
        """Whether it is a failure that may not recur: not success, a stop, or an invalid recipe."""
        return self.exit_code not in (0, InputError.exit_code) and self.exit_code < 128


@dataclass(frozen=True)
class LauncherExit:
    """The exit of a node's launcher."""

    exit_code: int
    """torchrun's, or the program's own if it ran without torchrun; negative for a signal."""
    launcher_log: Path | None
    """None if the program ran without torchrun."""
    log_size_before: int = 0
    """Length of `launcher_log` before this attempt, in bytes."""
    host: str | None = None
    """The host, if there are several."""
    lost: AscendtuneError | None = None
    """The reason why the node's own report is missing."""


def record_of(run_dir: Path) -> dict[str, Any] | None:
    """run.json, or None if the job has none."""
    return RunDir(run_dir).read_if_any() or None


def job_result(
    run_dir: Path, before: dict[str, Any] | None, ending: LauncherExit, stop_signal: signal.Signals | None
) -> JobResult:
    """The cause from run.json; if the workers could not write one, from the launcher's observations.

    Args:
        before: run.json before the attempt; an old cause must not explain a new failure.
        ending: exit of the node that failed first.
        stop_signal: the signal with which the user stopped the job; None if there was none.
    """
    if ending.exit_code == 0:
        return JobResult(0)
    record = record_of(run_dir)
    if before is not None and record is None:
        try:
            RunDir(run_dir).require_present()
        except MachineError as removed:
            return JobResult(removed.exit_code, removed)
    cause = record.get("exit_cause") if record and record != before else None
    # Ranks on other hosts are asked to stop when one host fails, and the kernel stops the ranks of a torchrun that was
    # killed: their stop is not the cause.
    has_torchrun_died = ending.launcher_log is not None and ending.exit_code < 0
    is_echo = cause and cause["exit_code"] > 128 and (ending.host or has_torchrun_died) and not stop_signal
    if cause and not is_echo:
        return _result_of_cause(run_dir, cause, _identity(record or {}, cause))
    if record and record != before and record.get("state") == "stopped" and not is_echo:
        return JobResult(128 + (stop_signal or signal.SIGTERM))
    if stop_signal:
        close_stopped(run_dir, stop_signal)
        return JobResult(128 + stop_signal)
    failure = _seen(ending, run_dir / "log")
    close(run_dir, "failed", failure.cause())
    # A program without a run.json reports only by its exit code.
    return JobResult(failure.error.exit_code if record else failure.exit_code, failure.error, failure=failure)


def _identity(record: dict[str, Any], cause: dict[str, Any]) -> tuple[Any, ...]:
    attempts = record.get("attempts") or [{}]
    return (*(cause.get(key) for key in ("kind", "code", "exception")), attempts[-1].get("step"))


def _result_of_cause(run_dir: Path, cause: dict[str, Any], recorded: tuple[Any, ...]) -> JobResult:
    code, rank = int(cause.get("exit_code", 1)), cause.get("rank")
    # Another node's launcher has recorded it.
    was_seen = cause.get("kind") in _SEEN
    if code > 128 or (rank == 0 and not was_seen):
        # Rank 0 has the terminal and has printed its error; a stop is printed by every rank.
        return JobResult(code, recorded=recorded)
    error = class_of(code)(
        cause["what"] if rank is None or was_seen else f"rank {rank}: {cause['what']}",
        code=cause.get("code", ""),
        remedy=cause["remedy"],
        where=run_dir / "log" / f"rank_{rank}.log" if rank is not None else run_dir,
    )
    return JobResult(code, error, recorded)


_SEEN: tuple[CauseKind, ...] = ("exit", "signal", "launcher", "disk", "lost_host")


def _seen(ending: LauncherExit, logs: Path) -> SeenFailure:
    """The launcher's observation of the failure: used if no worker recorded a cause."""
    at = f" on {ending.host}" if ending.host else ""
    if ending.lost is not None:
        return SeenFailure("lost_host", ending.lost, ending.lost.exit_code, host=ending.host)
    if ending.launcher_log is None:
        return _death("the worker", ending.exit_code, logs, rank=0)
    output = _output_of(ending.launcher_log, ending.log_size_before)
    first = _first_failure(output)
    if first is None and ending.exit_code < 0:
        return _death(f"torchrun{at}", ending.exit_code, ending.launcher_log, host=ending.host)
    if first is not None:
        rank, code = first
        log = logs / f"rank_{rank}.log"
        where = log if log.exists() else ending.launcher_log
        return _death(f"rank {rank}{at}", code, where, rank=rank, host=ending.host)
    if full := _full_disk(logs):
        return SeenFailure("disk", full, full.exit_code, host=ending.host)
    error = CheckFailed(
        f"the workers{at} failed to start, or lost connection to each other",
        code="workers-not-connected",
        remedy="look at torchrun's messages",
        where=ending.launcher_log,
    )
    return SeenFailure("launcher", error, error.exit_code, host=ending.host)


def _first_failure(output: str) -> tuple[int, int] | None:
    """The rank that torchrun saw fail first, and its exit code; None if torchrun's output does not name it."""
    before, named, after = output.rpartition("Root Cause")
    root = _FAILURE.search(after) if named else None
    if root is None:
        return None
    # torchrun records whole seconds, and of ranks that ended in the same one it names the lowest. A rank that the
    # kernel killed did not end because of another one; a rank that lost another did.
    effects = (_LOST_ANOTHER, -signal.SIGTERM)
    listed = _FAILURE.finditer(before[before.rfind("Failures:") :])
    at_once = [each for each in listed if each["time"] == root["time"]]
    killed = [each for each in at_once if int(each["code"]) == -signal.SIGKILL]
    alone = [each for each in at_once if int(each["code"]) not in effects and int(root["code"]) == _LOST_ANOTHER]
    first = root if int(root["code"]) < 0 else next(iter(killed + alone), root)
    return int(first["rank"]), int(first["code"])


def _full_disk(logs: Path) -> MachineError | None:
    """The disk's error if that is why torchrun could not write its output."""
    try:
        probe_disk(logs)
    except OSError as error:
        return disk_fault(error, logs, "writing the logs")
    return None


def shell_exit_code(code: int) -> int:
    """The exit code of a process, negative for a signal, as a shell shows it."""
    return 128 - code if code < 0 else code


def _death(process: str, code: int, where: Path, *, rank: int | None = None, host: str | None = None) -> SeenFailure:
    name = signal.Signals(-code).name if code < 0 else None
    ending, error_code, remedy = f"ended with exit code {code}", "process-exited", "look at the end of its log"
    if code == _LOST_ANOTHER:
        remedy = (
            "look at its last message, above or in its log: if it lost its connection to another rank, that rank "
            "exited without an error or the network failed; see the ends of all logs"
        )
    elif code == -signal.SIGKILL:
        ending, error_code = f"was killed ({name})", "process-killed"
        remedy = "usually the host ran out of memory: see `dmesg | grep -i oom`; take a smaller batch"
    elif name:
        ending, error_code = f"crashed ({name})", "process-crashed"
    kind = MachineError if code == _LOST_ANOTHER else CheckFailed
    error = kind(f"{process} {ending}", code=error_code, remedy=remedy, where=where)
    return SeenFailure("signal" if name else "exit", error, shell_exit_code(code), rank, host, name, ending)


def _output_of(launcher_log: Path, log_size_before: int) -> str:
    try:
        with open_regular(launcher_log) as file:
            # torchrun lists the failures at the end.
            file.seek(max(log_size_before, os.fstat(file.fileno()).st_size - _LONGEST_OUTPUT))
            return file.read(_LONGEST_OUTPUT).decode(errors="replace")
    except (OSError, NotRegular):
        # Of another host, which may have ended before it wrote one.
        return ""


def close_stopped(run_dir: Path, stop_signal: signal.Signals) -> None:
    """`close` for an attempt whose workers were killed when, or soon after, they were asked to stop."""
    close(run_dir, "stopped", exit_cause("stop", stopped_at_once(RunDir(run_dir).checkpoint_steps(), stop_signal)))


def close(run_dir: Path, state: State, cause: dict[str, Any]) -> None:
    """Record the end of an attempt whose workers could not: they have all ended, so no other process writes
    run.json."""
    run = RunDir(run_dir)
    if run.run_json.is_file() and run.read()["state"] in ("created", "running", "stopped"):
        run.end_attempt(state, cause)
