"""The phases of a step: their durations, and the heartbeat file that tells the watcher the current one.

Free of torch.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ascendtune.core.procfs import boot_id, pid_namespace, stat_of

# Fixed, so that a new beat always overwrites the old one completely. A host name has 64 characters at most.
_BEAT_BYTES = 512


class Phases:
    """Adds up seconds per phase and keeps `heartbeat/rank_N.json` current.

    Phases are preparation (of the data), rendezvous and loading, then in each step data, forward, backward, collective
    and optimizer, in between checkpoint, evaluation and profile, and export. The heartbeat is one short write into an
    open file, without fsync: it is read only while the machine is up. Seconds are the host's: on an accelerator, work
    queued in one phase may run during the next.

    Args:
        heartbeat: the file; None writes none.
        attempt: number of the attempt, for the heartbeat.
    """

    def __init__(self, heartbeat: Path | None, attempt: int = 1) -> None:
        self._file = (
            os.open(heartbeat, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644) if heartbeat else None
        )
        stat = stat_of(os.getpid())
        self.attempt = attempt
        identity = {
            "attempt": attempt,
            "pid": os.getpid(),
            "start_ticks": stat.start_ticks if stat else None,
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "pid_namespace": pid_namespace(),
        }
        self._identity = json.dumps(identity)[1:]
        """The end of every beat. It is text, because about ten beats are written in a step."""
        self._seconds: dict[str, float] = {}
        self._innermost: str | None = None
        """The innermost open phase."""
        self._seconds_inside = 0.0
        """Seconds of phases inside the innermost one."""
        self.make_range: Callable[[str], AbstractContextManager[object]] | None = None
        """Returns a range of the profiler's trace for each phase, in profiled steps."""
        self.step = 0
        self.enter("preparation")

    def enter(self, name: str) -> None:
        """Begin phase `name`; its time is not recorded (it precedes the first step)."""
        self.current = name
        self.write_heartbeat()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute the time inside to `name`, except that of inner phases; afterwards the outer phase continues."""
        outer, self._innermost = self._innermost, name
        of_outer, self._seconds_inside = self._seconds_inside, 0.0
        self.enter(name)
        start = time.perf_counter()
        try:
            with self.make_range(name) if self.make_range else nullcontext():
                yield
        finally:
            elapsed = time.perf_counter() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + elapsed - self._seconds_inside
            self._innermost, self._seconds_inside = outer, of_outer + elapsed
            if outer is not None:
                self.enter(outer)

    def write_heartbeat(self) -> None:
        """Write the heartbeat. Call it during long work within one phase."""
        if self._file is not None:
            beat = (
                f'{{"phase": "{self.current}", "step": {self.step}, "monotonic": {time.monotonic()}, {self._identity}'
            )
            os.pwrite(self._file, beat.encode().ljust(_BEAT_BYTES - 1) + b"\n", 0)

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call."""
        seconds, self._seconds = self._seconds, {}
        return {name: round(value, 6) for name, value in seconds.items()}

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
