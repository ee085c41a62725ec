"""Durations of a run's attempts, counted since boot: the clock may be set while a run trains."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ascendtune.core import procfs
from ascendtune.core.foreign_json import is_number


def seconds_since(attempt: Mapping[str, Any]) -> float | None:
    """Seconds since the attempt began; None if only the clock's time is recorded and it lies in the future."""
    since_boot, began = attempt.get("monotonic"), attempt.get("started")
    if is_number(since_boot) and attempt.get("boot_id") == procfs.boot_id():
        return time.monotonic() - since_boot
    seconds = time.time() - began if is_number(began) else -1.0
    return seconds if seconds >= 0 else None


def seconds_of_attempts(attempts: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds of all attempts together; None unless each has recorded them."""
    known = [each["seconds"] for each in attempts if is_number(each.get("seconds"))]
    return sum(known) if known and len(known) == len(attempts) else None
