"""Jobs of this machine, or its part of one: this process becomes the only worker, or torchrun starts several."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ascendtune.core import process
from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.log import say
from ascendtune.core.rundir import RunDir
from ascendtune.core.same_interpreter import become_module
from ascendtune.job import registry
from ascendtune.job.command import command
from ascendtune.job.environment import local_environment, record_environment
from ascendtune.job.hang.watcher import StopMethods, Watcher
from ascendtune.job.launcher import Launcher
from ascendtune.job.rank import CORES, bind
from ascendtune.job.restart import run_to_the_end
from ascendtune.job.result import JobResult, LauncherExit, job_result, record_of
from ascendtune.job.spec import ALONE, JobSpec, NodePlace
from ascendtune.job.stop_signals import StopSignals

_LOOK_AT_OTHERS_SECONDS = 2.0
_GRACE_SECONDS = 20.0


def start(spec: JobSpec, place: NodePlace = ALONE) -> JobResult:
    """Run the job, or this node's part of it, to its end.

    For one process this function does not return, because this process becomes the program; unless the program may have
    to be restarted, or ended because it hangs.

    Raises:
        InputError: MASTER_PORT is not a port.
        MachineError: the program cannot be started, the port is taken, the registry cannot be written.
    """
    argv = command(spec, os.environ, place)
    env = local_environment(spec, os.environ, place)
    record_environment(spec, env, os.environ, place)
    becomes_program = argv == list(spec.argv) and not spec.max_restarts and spec.on_hang == "warn"
    if becomes_program and spec.holds_interrupts:
        # Until the worker can handle it, Ctrl-C is deferred.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    job = registry.register(spec, argv, watched=not becomes_program)
    if argv == list(spec.argv):
        bind(0, env.get(CORES, ""))
    if becomes_program:
        _start_watcher(spec.run_dir, env)
        if spec.shares_interpreter:
            become_module(argv, env)
        process.replace(argv, env)
    if not place.is_alone:
        meeting = f"{place.master_addr}:{place.master_port}"
        say(f"node {place.node_rank} of {place.nnodes}: all nodes meet at {meeting}, the first waits for the last")
    return run_to_the_end(spec, job, lambda stop_signals: _attempt(spec, place, argv, env, stop_signals))


def _start_watcher(run_dir: Path, env: dict[str, str]) -> None:
    if RunDir(run_dir).heartbeats.is_dir():
        argv = (
            sys.executable,
            "-P",
            "-m",
            "ascendtune.job.hang.watcher_process",
            str(os.getpid()),
            str(run_dir.resolve()),
        )
        process.start_detached_child(argv, env)


def _attempt(
    spec: JobSpec, place: NodePlace, argv: list[str], env: dict[str, str], stop_signals: StopSignals
) -> JobResult:
    before = record_of(spec.run_dir)
    log = spec.launcher_log(place) if argv != list(spec.argv) else None
    with translated_disk_errors(spec.logs, "opening a log"):
        log_size_before = log.stat().st_size if log and log.exists() else 0
        # torchrun's descriptor 2 is its log, so rank 0 gets our stderr as descriptor 0.
        scratch = spec.agent_directory(place) if log else None
        launcher = Launcher(argv, env, stdin=2 if log else None, stderr=log, scratch=scratch)
    others = OtherNodes(spec.run_dir, before) if not place.is_alone else None
    watcher = Watcher(spec.run_dir, spec.on_hang, StopMethods(launcher.signal_workers, launcher.kill), launcher.workers)
    exit_code = _until_the_end(launcher, stop_signals, others, watcher)
    watcher.close()
    return job_result(spec.run_dir, before, LauncherExit(exit_code, log, log_size_before), stop_signals.first)


def _until_the_end(launcher: Launcher, stop_signals: StopSignals, others: OtherNodes | None, watcher: Watcher) -> int:
    has_signalled = False
    while (exit_code := launcher.wait()) is None:
        if stop_signals.again or (others and others.have_failed()):
            launcher.kill()
        elif stop_signals.first and not has_signalled:
            launcher.signal_workers(stop_signals.first)
            has_signalled = True
        if stop_signals.pause:
            stop_signals.pause = False
            launcher.pause()
        watcher.look()
    launcher.end_descendants(lambda: stop_signals.again)
    return exit_code


class OtherNodes:
    """Detects failed ranks on other nodes: our ranks may wait for them in a collective until its time-out."""

    def __init__(self, run_dir: Path, before: dict[str, Any] | None) -> None:
        self._run_dir = run_dir
        self._before = before
        self._look_at = 0.0
        self._failed_since: float | None = None

    def have_failed(self) -> bool:
        """Whether run.json has recorded a failure for `_GRACE_SECONDS`: our ranks had time to end by themselves."""
        now = time.monotonic()
        if now >= self._look_at and self._failed_since is None:
            self._look_at = now + _LOOK_AT_OTHERS_SECONDS
            record = record_of(self._run_dir)
            if record is not None and record != self._before and record.get("state") == "failed":
                self._failed_since = now
        return self._failed_since is not None and now - self._failed_since > _GRACE_SECONDS
