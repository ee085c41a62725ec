"""Where the time of a step goes, and a sign of life for whoever watches from outside."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PHASES = ("data", "forward", "backward", "collective", "optimizer", "checkpoint", "evaluation")
# Fixed, so that a new beat always covers the old one completely.
_BEAT_BYTES = 128


class Phases:
    """Adds up seconds per phase and keeps `heartbeat/rank_N.json` current.

    The heartbeat is one short write into an open file, without fsync: it is read while the machine is up or not at all.
    Seconds are the host's: on an accelerator work that was queued in one phase may run during the next.
    """

    def __init__(self, heartbeat: Path | None) -> None:
        self._file = (
            os.open(heartbeat, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644) if heartbeat else None
        )
        self._seconds: dict[str, float] = {}
        self.step = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute the time inside to `name`."""
        self._beat(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call."""
        seconds, self._seconds = self._seconds, {}
        return {name: round(value, 6) for name, value in seconds.items()}

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _beat(self, phase: str) -> None:
        if self._file is not None:
            beat = json.dumps({"phase": phase, "step": self.step, "monotonic": time.monotonic(), "pid": os.getpid()})
            os.pwrite(self._file, beat.encode().ljust(_BEAT_BYTES - 1) + b"\n", 0)
