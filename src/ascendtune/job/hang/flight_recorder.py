"""torch's flight recorder: the last collectives of a rank, whether they were started and whether they ended.

NCCL's and HCCL's process groups keep one, and write it down when something is written to a named pipe. The environment
variables TORCH_NCCL_DEBUG_INFO_PIPE_FILE and …_TEMP_FILE (or TORCH_HCCL_…) say where; the rank and ".pipe" are appended
to the first, the rank to the second. `torchfrtrace` reads it. Gloo's can be read from within its process only.

HCCL's is asked where the user has switched it on: TORCH_HCCL_TRACE_BUFFER_SIZE=2000, TORCH_HCCL_ENABLE_MONITORING=1,
TORCH_HCCL_DUMP_ON_TIMEOUT=1 and the two names. The thread that listens also ends a process whose watchdog it takes for
stuck, which torch_npu leaves switched off.
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
# A thread of the process group looks at the pipe once a second.
_ANSWER_SECONDS = 5.0
_LOOK_EVERY_SECONDS = 0.1


@dataclass(frozen=True)
class RequestedDump:
    """A recorder that was asked to write `file`."""

    file: Path
    before_ns: int
    """When the file was written last; 0 where there was none."""


def variables(library: str, run_dir: Path) -> dict[str, str]:
    """Environment variables that make the process group of `library` (NCCL) keep a recorder, and write it where
    `request_dump` looks."""
    chosen = {
        # Both are torch's own defaults by now. Without the second the pipe is looked at every ten minutes only.
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
    """What the names of a run's pipes begin with; None where there is no place for them.

    Not in the run directory: not every shared file system can hold a pipe, and torch ends the worker where it cannot
    make one. So it would in /tmp itself, where another user may have put a file of that name.
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
    """Ask a worker's flight recorder to write down what it has; None where it has none that listens."""
    environment = procfs.environment_of(pid)
    for library in _LIBRARIES:
        pipe = environment.get(f"TORCH_{library}_DEBUG_INFO_PIPE_FILE")
        file = environment.get(f"TORCH_{library}_DEBUG_INFO_TEMP_FILE")
        # Without a reader the pipe cannot be opened: the process group is not there yet, or no longer.
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
    """Copy what the recorders write into `directory`; what does not come in time is left out."""
    waiting = list(recordings)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while waiting and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_SECONDS)
        for each in [each for each in waiting if _written_ns(each.file) > each.before_ns]:
            waiting.remove(each)
            with suppress(OSError):
                # Written in one go; a moment later it is whole.
                time.sleep(_LOOK_EVERY_SECONDS)
                # HCCL's is two: beside it lie the Python stacks from which collectives were started.
                for file in (each.file, each.file.with_name(f"{each.file.name}_py_traceback")):
                    if file.exists():
                        shutil.copy(file, directory)


def _written_ns(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
