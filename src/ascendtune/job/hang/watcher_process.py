"""Watches the only worker of a job from a small process beside it, because the command itself has become the worker.

    python -m ascendtune.job.hang.watcher_process WORKER_PID RUN_DIR

It is a child of the worker in its own session; it ends with the worker, or with the run if the process continues.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# A hang is not judged before; until then this process imports almost nothing, while the worker starts.
_FIRST_LOOK_SECONDS = 60.0
_IS_OVER_EVERY_SECONDS = 10.0


def main(worker_pid: str, run_dir: str) -> None:
    worker = int(worker_pid)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The kernel wakes us when the worker ends; a descriptor of the process would do too, but not before Linux 5.3.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    deadline = time.monotonic() + _FIRST_LOOK_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        if not _still_runs_after(worker, min(left, _IS_OVER_EVERY_SECONDS)) or _is_over(Path(run_dir), worker):
            return
    _watch(worker, Path(run_dir))


def _still_runs_after(worker: int, seconds: float) -> bool:
    """Wait, and return whether the worker still runs."""
    if os.getppid() == worker:
        signal.sigtimedwait({signal.SIGTERM}, seconds)
    return os.getppid() == worker


def _is_over(run_dir: Path, worker: int) -> bool:
    """Whether the worker's attempt has ended or its directory is gone: a process may train several runs in turn."""
    from ascendtune.core.errors import AscendtuneError
    from ascendtune.core.rundir import RunDir

    try:
        record = RunDir(run_dir).read()
    except FileNotFoundError:
        return True
    except (OSError, AscendtuneError):
        return False
    attempts = record.get("attempts") or [{}]
    return record["state"] in ("finished", "failed", "stopped") and attempts[-1].get("pid") == worker


def _watch(worker: int, run_dir: Path) -> None:
    from ascendtune.core import log
    from ascendtune.core.procfs import stat_of
    from ascendtune.job.hang.watcher import LOOK_EVERY_SECONDS, Watcher

    log.set_up()
    watcher = Watcher(run_dir, "warn", workers=lambda: {0: stat} if (stat := stat_of(worker)) else {})
    while _still_runs_after(worker, LOOK_EVERY_SECONDS) and not _is_over(run_dir, worker):
        # Ctrl-Z pauses the worker, which has the terminal; that does not count as a hang.
        if (stat := stat_of(worker)) and stat.state != "T":
            watcher.look()


if __name__ == "__main__":
    main(*sys.argv[1:])
