"""Restarts a job that fails, up to `max_restarts` times; the workers resume from the newest complete checkpoint.

Not torchrun's own restarts: its agents start workers again while old ones still hang in a collective, and wait for
nodes that are gone. Here an attempt has ended on every node before the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ascendtune.core.checkpoint_names import checkpoint_to_load, is_checkpoint_of
from ascendtune.core.log import say, warn
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of
from ascendtune.job import registry
from ascendtune.job.hang.watcher import has_hung
from ascendtune.job.record import Job
from ascendtune.job.result import JobResult, record_of
from ascendtune.job.spec import JobSpec
from ascendtune.job.stop_signals import StopSignals


def run_to_the_end(spec: JobSpec, job: Job, attempt: Callable[[StopSignals], JobResult]) -> JobResult:
    """Run attempts until one succeeds, the user requests a stop, or no restart is left; the registry records the end.

    Args:
        job: the registered job of `spec`.
        attempt: receives the user's stop signals; all its processes have ended when it returns.
    """
    keeps_checkpoints = record_of(spec.run_dir) is not None
    with (
        registry.closing(job) as ended_with,
        StopSignals(keeps_checkpoints=keeps_checkpoints, can_pause=job.is_local) as stop_signals,
    ):
        result = _last_of(spec, attempt, stop_signals)
        ended_with(result.exit_code)
    return result


def _last_of(spec: JobSpec, attempt: Callable[[StopSignals], JobResult], stop_signals: StopSignals) -> JobResult:
    previous: tuple[Any, int] | None = None
    for left in range(spec.max_restarts, -1, -1):
        result = attempt(stop_signals)
        ends_here = stop_signals.first is not None or (spec.on_hang == "stop" and has_hung(spec.run_dir))
        if not left or not result.is_failure or ends_here:
            break
        failure = (result.recorded, _newest_step(spec))
        if result.recorded is not None and failure == previous:
            warn("the same failure recurred without a checkpoint in between: no further restart")
            break
        previous = failure
        what = f" ({result.error.what})" if result.error else ""
        say(f"the attempt failed{what}; {_next_start(spec)}, {count_of(left - 1, 'restart')} left")
    return result


def _newest_step(spec: JobSpec) -> int:
    steps = RunDir(spec.run_dir).checkpoint_steps() if record_of(spec.run_dir) else []
    return steps[-1] if steps else 0


def _next_start(spec: JobSpec) -> str:
    """The checkpoint from which the next attempt resumes, as its workers will find it, for messages."""
    record = record_of(spec.run_dir)
    if record is None:
        return "the command is started again"
    run = RunDir(spec.run_dir)
    source = checkpoint_to_load(run, record)
    if source is None:
        return "resuming from the beginning"
    is_own = is_checkpoint_of(run, source)
    return f"resuming from {source.resolve().name.replace('step_', 'step ') if is_own else source}"
