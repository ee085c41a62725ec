"""torch's flight recorder: the last collectives of a rank, whether they were started and whether they ended.

NCCL's and HCCL's process groups keep one, and dump it when a byte is written to a named pipe. The environment variables
TORCH_NCCL_DEBUG_INFO_PIPE_FILE and …_TEMP_FILE (or TORCH_HCCL_…) set the paths: the rank and ".pipe" are appended to
the first, the rank to the second. `torchfrtrace` reads the dump. Gloo's can be read only from within its process.

HCCL's is used if the user has enabled it: TORCH_HCCL_TRACE_BUFFER_SIZE=2000, TORCH_HCCL_ENABLE_MONITORING=1,
TORCH_HCCL_DUMP_ON_TIMEOUT=1 and the two paths. Its listening thread also ends a process whose watchdog seems to be
stuck, which torch_npu disables by default.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core import procfs
from ascendtune.core.rundir import RunDir

_LIBRARIES = ("NCCL", "HCCL")
# A thread of the process group reads the pipe once a second.
_ANSWER_SECONDS = 5.0
_LOOK_EVERY_SECONDS = 0.1


@dataclass(frozen=True)
class RequestedDump:
    """A request to a recorder to write `file`."""

    file: Path
    before_ns: int
    """Time of the last write to the file; 0 if it did not exist."""


def variables(library: str, run_dir: Path) -> dict[str, str]:
    """Environment variables that make the process group of `library` (NCCL) keep a recorder, and dump it where
    `request_dump` expects it."""
    chosen = {
        # Both are torch's defaults by now. Without the second the pipe is read every ten minutes only.
        f"TORCH_{library}_TRACE_BUFFER_SIZE": "2000",
        f"TORCH_{library}_DUMP_ON_TIMEOUT": "1",
        f"TORCH_{library}_DEBUG_INFO_TEMP_FILE": str(RunDir(run_dir).logs.resolve() / "flight_recorder_rank_"),
    }
    if (pipes := _pipes(run_dir)) is not None:
        chosen[f"TORCH_{library}_DEBUG_INFO_PIPE_FILE"] = str(pipes)
    return chosen


def remove_stale_pipes(run_dir: Path) -> None:
    """Remove the pipes of workers that have ended."""
    if (pipes := _pipes(run_dir)) is not None:
        for pipe in pipes.parent.glob(f"{pipes.name}*.pipe"):
            with suppress(OSError):
                pipe.unlink()


def _pipes(run_dir: Path) -> Path | None:
    """Prefix of the paths of a run's pipes; None if there is no directory for them.

    Not in the run directory: not every shared file system supports pipes, and torch ends the worker if it cannot create
    one. Nor in /tmp itself, where another user may have created a file of that name.
    """
    directory = Path(tempfile.gettempdir()) / f"ascendtune-{os.geteuid()}"
    with suppress(OSError):
        with suppress(FileExistsError):
            directory.mkdir(0o700)
        facts = directory.lstat()
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022:
            return directory / f"{hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]}-"
    return None


def request_dump(pid: int, rank: int) -> RequestedDump | None:
    """Request a dump of a worker's flight recorder; None if it has no recorder that listens."""
    environment = procfs.environment_of(pid)
    for library in _LIBRARIES:
        pipe = environment.get(f"TORCH_{library}_DEBUG_INFO_PIPE_FILE")
        file = environment.get(f"TORCH_{library}_DEBUG_INFO_TEMP_FILE")
        # Without a reader the pipe cannot be opened: the process group does not exist yet, or no longer.
        with suppress(OSError):
            if pipe and file:
                recording = RequestedDump(Path(f"{file}{rank}"), _written_ns(Path(f"{file}{rank}")))
                descriptor = os.open(f"{pipe}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
                try:
                    os.write(descriptor, b"dump")
                finally:
                    os.close(descriptor)
                return recording
    return None


def collect_dumps(recordings: Sequence[RequestedDump], directory: Path) -> None:
    """Copy the dumps of the recorders into `directory`; dumps that are not written in time are skipped."""
    waiting = list(recordings)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while waiting and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_SECONDS)
        for each in [each for each in waiting if _written_ns(each.file) > each.before_ns]:
            waiting.remove(each)
            with suppress(OSError):
                # It is written at once, and complete a moment later.
                time.sleep(_LOOK_EVERY_SECONDS)
                # HCCL writes a second file: the Python stacks from which collectives were started.
                for file in (each.file, each.file.with_name(f"{each.file.name}_py_traceback")):
                    if file.exists():
                        shutil.copy(file, directory)


def _written_ns(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
