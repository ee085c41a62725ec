"""CANN's own logs: one file for each process, `plog-PID_TIME.log`, with what its libraries say of their errors."""

from __future__ import annotations

import re
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
        # In a directory that others may write a link could lead to any file of this user's.
        if name and int(name["pid"]) in pids and not path.is_symlink() and path.stat().st_mtime >= since:
            yield path
