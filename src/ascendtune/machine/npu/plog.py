"""CANN's own logs: one file for each process, `plog-PID_TIME.log`, with the errors of its libraries."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

_NAME = re.compile(r"plog-(?P<pid>[0-9]{1,10})_[0-9]+\.log")


def cann_logs(env: Mapping[str, str]) -> Path:
    """The directory of CANN's logs, by its variables."""
    work = env.get("ASCEND_WORK_PATH")
    given = env.get("ASCEND_PROCESS_LOG_PATH") or (f"{work}/log" if work else None)
    return Path(given or Path(env.get("HOME") or "/root") / "ascend/log")


def plogs_of(pids: Collection[int], env: Mapping[str, str], *, since: float) -> Iterator[Path]:
    """The logs of errors of these processes that were written to at `since` (seconds since the epoch) or later."""
    for path in sorted((cann_logs(env) / "debug/plog").glob("plog-*.log")):
        name = _NAME.fullmatch(path.name)
        if name and int(name["pid"]) in pids and _is_written_since(path, since):
            yield path


def _is_written_since(path: Path, since: float) -> bool:
    """Whether it is a file that was written to at `since` or later; False if CANN has removed it meanwhile."""
    try:
        # In a directory that others may write a link could lead to any file of this user's, and a pipe would block.
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_mtime >= since
