"""Ends the processes that a killed launcher leaves behind: a small process beside it, with no other task.

    python -m ascendtune.job.guard TOKEN [DIRECTORY]

Its stdin closes when the launcher ends. The kernel has then sent SIGTERM to torchrun's agent, and the agent to its
workers. Processes that ignore it would run for the half minute that an agent waits, and for ever if the agent has
ended. DIRECTORY, which contains the agent's temporary files, is removed after them.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress

from ascendtune.core import procfs
from ascendtune.core.interrupts import LAUNCHER_TOKEN

# All processes have ended ten seconds after a launcher was killed.
_CHECKPOINT_SECONDS = 7.0
_KILL_SECONDS = 5.0
_LOOK_EVERY_SECONDS = 0.2


def main(token: str, directory: str | None = None) -> None:
    sys.stdin.buffer.read()
    # Processes that were paused together with the launcher could not handle a signal.
    _send(token, signal.SIGCONT)
    _wait(token, _CHECKPOINT_SECONDS)
    deadline = time.monotonic() + _KILL_SECONDS
    while _send(token, signal.SIGKILL) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_SECONDS)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def _wait(token: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _carriers(token) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_SECONDS)


def _send(token: str, number: signal.Signals) -> bool:
    """Send a signal to the processes with `token`; False if there are none."""
    found = _carriers(token)
    for pid in found:
        with suppress(OSError):
            os.kill(pid, number)
    return bool(found)


def _carriers(token: str) -> list[int]:
    # Read again before every signal: a process that has reused a pid does not have the token.
    return [stat.pid for stat in procfs.stats() if procfs.environment_of(stat.pid).get(LAUNCHER_TOKEN) == token]


if __name__ == "__main__":
    main(*sys.argv[1:])
