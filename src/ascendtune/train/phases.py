"""The time of each phase of a step, and a heartbeat file for other processes."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ascendtune.core.procfs import stat_of

# Fixed, so that a new beat always covers the old one completely. The name of a host has 64 characters at most.
_BEAT_BYTES = 256


class Phases:
    """Adds up seconds per phase and keeps `heartbeat/rank_N.json` current.

    Phases are preparation (of the data), rendezvous and loading, then in each step data, forward, backward, collective
    and optimizer, in between checkpoint and evaluation, and export. The heartbeat is one short write into an open file,
    without fsync: it is read while the machine is up or not at all. Seconds are the host's: on an accelerator work that
    was queued in one phase may run during the next.

    Args:
        heartbeat: the file; None keeps none.
        attempt: number of the attempt, for the heartbeat.
    """

    def __init__(self, heartbeat: Path | None, attempt: int = 1) -> None:
        self._file = (
            os.open(heartbeat, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644) if heartbeat else None
        )
        stat = stat_of(os.getpid())
        self.attempt = attempt
        self._who = {
            "attempt": attempt,
            "pid": os.getpid(),
            "start_ticks": stat.start_ticks if stat else None,
            "host": socket.gethostname(),
        }
        self._seconds: dict[str, float] = {}
        self.step = 0
        self.enter("preparation")

    def enter(self, name: str) -> None:
        """From here on the phase is `name`; of what comes before the first step the time is not kept."""
        self._phase = name
        self.pulse()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute the time inside to `name`."""
        self.enter(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def pulse(self) -> None:
        """Write the heartbeat; for long work within one phase."""
        if self._file is not None:
            beat = json.dumps({"phase": self._phase, "step": self.step, "monotonic": time.monotonic(), **self._who})
            os.pwrite(self._file, beat.encode().ljust(_BEAT_BYTES - 1) + b"\n", 0)

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call."""
        seconds, self._seconds = self._seconds, {}
        return {name: round(value, 6) for name, value in seconds.items()}

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
