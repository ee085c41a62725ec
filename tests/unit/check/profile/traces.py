"""Small traces in the format of torch.profiler's export_chrome_trace, for tests. Times are microseconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
MAIN = 100
OTHER = 200
STREAM = 7


def op(name: str, start: float, duration: float, *, tid: int = MAIN, **arguments: int) -> Event:
    return _event("cpu_op", name, start, duration, tid, arguments)


def named(name: str, start: float, duration: float, *, tid: int = MAIN) -> Event:
    return _event("user_annotation", name, start, duration, tid, {})


def step(number: int, start: float, duration: float) -> Event:
    return named(f"ProfilerStep#{number}", start, duration)


def kernel(name: str, start: float, duration: float, *, stream: int = STREAM, **arguments: int) -> Event:
    return _event("kernel", name, start, duration, stream, arguments)


def copy(name: str, start: float, duration: float, **arguments: int) -> Event:
    return _event("gpu_memcpy", name, start, duration, STREAM, arguments)


def launch(name: str, start: float, duration: float, **arguments: int) -> Event:
    return _event("cuda_runtime", name, start, duration, MAIN, arguments)


def allocation(
    time: float, size: int, address: int, *, device: tuple[int, int] = (0, -1), allocated: int = 0, reserved: int = 0
) -> Event:
    """What an allocator gives out; below 0 what it takes back."""
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": MAIN, "ts": time,
        "args": {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": size, "Addr": address,
                 "Device Type": device[0], "Device Id": device[1]},
    }  # fmt: skip


def _event(category: str, name: str, start: float, duration: float, tid: int, arguments: dict[str, int]) -> Event:
    spelled = {"external": "External id", "sequence": "Sequence number", "correlation": "correlation"}
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": duration,
        "args": {spelled[key]: value for key, value in arguments.items()},
    }  # fmt: skip


def write(path: Path, events: list[Event], **beside: Any) -> Path:
    """A trace file; compressed where the name ends in .gz."""
    text = json.dumps({"schemaVersion": 1, **beside, "traceEvents": events, "traceName": path.name}, indent=1).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
