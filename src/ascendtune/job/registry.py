"""Which jobs did this user start on this machine? One JSON file per job, written when it starts."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.files import write_json
from ascendtune.core.places import require_writable_place, state_directory
from ascendtune.job.spec import JobSpec

_KEPT_SECONDS = 14 * 24 * 3600


def register(spec: JobSpec, argv: list[str]) -> Path:
    """Note that this process is (or is about to become) the job; returns its file.

    The pid alone would not do: pids are used again. With the time at which the process started they are unique.
    """
    directory = _directory()
    started = time.time()
    path = directory / f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(started))}-{os.getpid()}.json"
    require_writable_place(directory, "XDG_STATE_HOME")
    with translated_disk_errors(directory, "registering the job"):
        directory.mkdir(parents=True, exist_ok=True)
    _forget_old(directory)
    record = {
        "pid": os.getpid(),
        "process_started": psutil.Process().create_time(),
        "host": socket.gethostname(),
        "started": started,
        "run_dir": str(spec.run_dir.resolve()),
        "argv": argv,
        "nproc": spec.nproc,
        "kind": spec.kind,
        "device_ids": list(spec.device_ids) if spec.device_ids is not None else None,
        "state": "running",
    }
    write_json(path, record)
    return path


def close(path: Path, exit_code: int) -> None:
    """Note how the job ended. A process that became its only worker cannot do this: ask `is_alive`."""
    with suppress(FileNotFoundError):
        record = json.loads(path.read_text())
        write_json(path, {**record, "state": "ended", "ended": time.time(), "exit_code": exit_code})


def jobs() -> Iterator[dict[str, Any]]:
    """All records, oldest first; damaged files are skipped."""
    for path in sorted(_directory().glob("*.json")):
        with suppress(ValueError, FileNotFoundError):
            yield json.loads(path.read_text())


def is_alive(record: dict[str, Any]) -> bool:
    """Whether the job's process runs on this machine."""
    if record["host"] != socket.gethostname():
        return False
    with suppress(psutil.NoSuchProcess):
        # Both times are read from the same clock tick counter; they differ by rounding at most.
        return abs(psutil.Process(record["pid"]).create_time() - float(record["process_started"])) < 0.05
    return False


def _directory() -> Path:
    return state_directory() / "jobs"


def _forget_old(directory: Path) -> None:
    for path in directory.glob("*.json"):
        with suppress(OSError, ValueError):
            is_old = time.time() - path.stat().st_mtime > _KEPT_SECONDS
            if is_old and not is_alive(json.loads(path.read_text())):
                path.unlink()
