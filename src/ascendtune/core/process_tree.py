"""Find, signal and wait for the descendants of a process."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, orphaned descendants become children of this process, so they can be found and waited for."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[psutil.Process]:
    """The children of `pid`."""
    return _children(pid, recursive=False)


def below(pid: int) -> list[psutil.Process]:
    """The descendants of `pid`."""
    return _children(pid, recursive=True)


def _children(pid: int, *, recursive: bool) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send `number` to each live process; psutil checks that a pid was not reused."""
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def send_as_a_terminal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send `number` to each live process, and to the process group that it leads."""
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            # Checks that the pid was not reused, as `send` does.
            if not process.is_running():
                continue
            if os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)


def wait_all(processes: Sequence[psutil.Process], timeout_seconds: float) -> list[psutil.Process]:
    """Wait for processes to end; returns those that have not."""
    return psutil.wait_procs(list(processes), timeout=timeout_seconds)[1]
