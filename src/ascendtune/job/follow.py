"""Follows the logs of a job: their lines, as they are written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ascendtune.core.tail import Tail, begin_of_last
from ascendtune.job.record import Job

JOB_LOG = "job.log"
"""The log of a job in the background; rank 0 of a training writes to it, too."""
_RANK_LOG = re.compile(r"rank_(\d+)\.log")
_LOOK_EVERY_SECONDS = 0.2
_BAR_EVERY_SECONDS = 30.0
"""Seconds between two displays of a progress bar, which overwrites its line for as long as it runs."""


@dataclass(frozen=True)
class LogLine:
    """One line of a log; `rank` is None for a line of the job itself."""

    rank: int | None
    text: str


@dataclass
class _Log:
    """A log that is being followed."""

    rank: int | None
    tail: Tail
    shown_at: float = field(default_factory=time.monotonic)
    bar: str = ""
    """The last state of a progress bar that was shown."""

    def news(self, is_over: bool) -> Iterator[str]:
        """Lines since the last call, and sometimes the state of a progress bar; at the end everything that is left."""
        now = time.monotonic()
        for line in self.tail.lines():
            self.shown_at = now
            yield line
        bar = self.tail.bar()
        if is_over:
            yield from (text for text in self.tail.rest() if text != self.bar)
            self.tail.close()
        elif now - self.shown_at >= _BAR_EVERY_SECONDS and bar not in ("", self.bar):
            self.bar, self.shown_at = bar, now
            yield bar


def logs_of(directory: Path, rank: int | None = None) -> dict[Path, int | None]:
    """The logs of a job, in the order of ranks, and the rank of each; if `rank` is given, only those that it writes."""
    found = [(int(name[1]), path) for path in directory.glob("*.log") if (name := _RANK_LOG.fullmatch(path.name))]
    logs: dict[Path, int | None] = {directory / JOB_LOG: None} if (directory / JOB_LOG).exists() else {}
    logs |= {path: of for of, path in sorted(found)}
    return {path: of for path, of in logs.items() if rank is None or rank == (of or 0)}


def has_the_terminal(job: Job) -> bool:
    """Whether rank 0 writes to the terminal and to no log, as our worker in the foreground does."""
    in_background = job.session == job.pid and JOB_LOG in job.log_sizes
    return not (job.is_foreign or in_background)


def missing_logs(job: Job, rank: int | None = None) -> list[int]:
    """Ranks, or only `rank`, whose logs are missing; ranks on other hosts are not known here."""
    ranks = range(job.nproc) if job.is_local else ()
    silent = [0] if has_the_terminal(job) else []
    return [each for each in ranks if rank in (None, each) and each not in silent and not logs_of(job.logs, each)]


def follow(
    directory: Path,
    is_over: Callable[[], bool],
    *,
    began: Mapping[str, int],
    last: int | None = None,
    rank: int | None = None,
) -> Iterator[LogLine]:
    """Yield the lines of all logs in `directory` until `is_over`, including logs that are created meanwhile.

    Args:
        is_over: whether nothing will be written any more; everything written before is still read.
        began: log -> the byte at which this job's part of it begins.
        last: number of lines at the end of each existing log to begin with; None: all.
        rank: read only the log of this rank.
    """
    logs: dict[Path, _Log] = {}
    over, at_first = False, True
    while not over:
        # Called before reading: everything that is written up to the end is read in this round.
        over = is_over()
        for path, of in logs_of(directory, rank).items():
            if path not in logs:
                begin = began.get(path.name, 0)
                # A log that is created later is read from its beginning.
                begin = begin_of_last(path, last, begin) if at_first and last is not None else begin
                logs[path] = _Log(of, Tail(path, begin))
        at_first = False
        for log in logs.values():
            yield from (LogLine(log.rank, text) for text in log.news(over))
        if not over:
            time.sleep(_LOOK_EVERY_SECONDS)
