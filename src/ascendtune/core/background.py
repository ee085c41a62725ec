"""One process becomes two: one stays with the terminal, the other goes on without it."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Other:
    """The process in the background, as seen by the one that stayed."""

    pid: int

    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs; not to be asked again after it was told."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def end(self) -> None:
        """Ask it to end; only before its exit code was told."""
        os.kill(self.pid, signal.SIGTERM)


def divide(log: Path) -> Other | None:
    """Fork. Returns None in the process that goes on in the background: in a session of its own, where the terminal's
    signals do not reach it, without input, with its output appended to `log`.
    """
    # What is buffered would otherwise be written by both.
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return Other(pid)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.close(nothing)
    os.close(output)
    return None
