"""torchrun's summary at the end: the rank that failed first, and the way its process ended."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER = "Root Cause (first observed failure)"
LONGEST = 3000
"""Lines; torchrun lists every rank that ended later before the first one."""
_FIELD = re.compile(r"\b(host|rank|exitcode)\s*: (\S+)")
_ENDED_BY_LAUNCHER = "-15"
"""Exit code of a process that was alive and received SIGTERM."""
_LAST = 10
"""Lines of the root cause."""


@dataclass(frozen=True)
class RootCause:
    rank: int | None
    host: str | None
    exit_code: int | None
    failed: frozenset[int]
    """All ranks in the summary, without those that torchrun ended."""


@dataclass(frozen=True)
class Summary:
    root_cause: RootCause
    text: str
    """Line with the signal that ended the process, else with its exit code."""
    index: int
    """Index of that line, from the beginning of the summary."""
    last: int
    """Index of the summary's last line: no other events are read up to it."""


def begins(message: str) -> bool:
    """Whether a line begins a summary, even if the summary's heading is lost."""
    return ("ChildFailedError:" in message and "raise" not in message) or HEADER in message


def summary(lines: list[str]) -> Summary | None:
    """Parse the lines of a summary, from its beginning on."""
    start = next((index for index, line in enumerate(lines) if HEADER in line), None)
    if start is None:
        return None
    fields: dict[str, str] = {}
    telling = last = start
    for index, line in enumerate(lines[start + 1 : start + 1 + _LAST], start + 1):
        if "=====" in line or "Traceback (most" in line:
            break
        last = index
        if match := _FIELD.search(line):
            fields.setdefault(match[1], match[2])
            telling = index if match[1] == "exitcode" else telling
        if re.search(r"traceback *: Signal", line):
            telling = index
    rank, failed = None, set[int]()
    for match in filter(None, map(_FIELD.search, lines[: last + 1])):
        rank = _number(match[2]) if match[1] == "rank" else rank
        if match[1] == "exitcode" and rank is not None and match[2] != _ENDED_BY_LAUNCHER:
            failed.add(rank)
    root_cause = RootCause(
        _number(fields.get("rank")), fields.get("host"), _number(fields.get("exitcode")), frozenset(failed)
    )
    return Summary(root_cause, lines[telling], telling, last) if fields else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdecimal() else None
