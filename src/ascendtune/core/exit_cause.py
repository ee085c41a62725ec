"""The end of an attempt as run.json records it: fields for programs, sentences for people."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Literal

from ascendtune.core.errors import AscendtuneError, Stopped

CauseKind = Literal[
    "exception", "oom", "stop", "hang", "exit", "signal", "launcher", "disk", "lost_host", "lost_starter"
]
"""Why an attempt did not finish.

A worker records `exception`, `oom` (device memory) or `stop`. The process that started the workers records `hang`;
`exit` or `signal` when a process ended without recording a cause; `launcher` when torchrun itself failed; `disk` when
the logs could not be written; `lost_host` when a host stopped answering. `lost_starter`: nothing was recorded, readers
infer it.
"""
OUT_OF_MEMORY = "out-of-memory"
"""The error code of a device whose memory is exhausted."""


def exit_cause(
    kind: CauseKind,
    error: AscendtuneError,
    *,
    rank: int | None = None,
    host: str | None = None,
    signal_name: str | None = None,
    exception: str | None = None,
    step: int | None = None,
    process_exit_code: int | None = None,
) -> dict[str, Any]:
    """`exit_cause` of run.json: fields for programs, and the sentence and remedy for people.

    Args:
        rank, host: where it happened; None if unknown.
        signal_name: the signal that ended the process, such as SIGKILL.
        exception: class and message of an exception that other software raised and that has no code of its own.
        step: the step in which it happened, or after which the run was stopped; 0 before the first one.
        process_exit_code: of the process that ended; None unless `kind` is exit.
    """
    if isinstance(error, Stopped):
        step = error.step
    return {
        "kind": kind,
        "code": error.code,
        "what": error.what,
        "remedy": error.remedy,
        "exit_code": error.exit_code,
        "rank": rank,
        "host": host,
        "signal": signal_name,
        "exception": exception,
        "step": step,
        "checkpoint_step": error.checkpoint_step if isinstance(error, Stopped) else None,
        "process_exit_code": process_exit_code,
    }


def exit_cause_of_worker(error: BaseException, rank: int) -> dict[str, Any]:
    """`exit_cause` for the exception that ended a worker on this host."""
    exception = None
    if not isinstance(error, AscendtuneError):
        exception = f"{type(error).__name__}: {error}"
        remedy = "look at the rank's log; ASCENDTUNE_DEBUG=1 shows more"
        error = AscendtuneError(exception, code="unexpected-exception", remedy=remedy)
    kind: CauseKind = "exception"
    if isinstance(error, Stopped):
        kind = "stop"
    elif error.code == OUT_OF_MEMORY:
        kind = "oom"
    return exit_cause(kind, error, rank=rank, host=socket.gethostname(), exception=exception)


def stopped_at_once(checkpoint_steps: Sequence[int], signal_number: int) -> Stopped:
    """The end of a run by a signal that left no time for a checkpoint.

    Args:
        checkpoint_steps: steps of the checkpoints that it has, ascending.
    """
    newest = checkpoint_steps[-1] if checkpoint_steps else None
    resumes = f"resumes from step {newest}" if newest is not None else ""
    return Stopped(
        "stopped at once, without writing a checkpoint",
        remedy=f"run the same command again: it {resumes or 'starts over, as there is no checkpoint yet'}",
        signal_number=signal_number,
        checkpoint_step=newest,
    )
