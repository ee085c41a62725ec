"""Logs in, explanation out: what failed first, where, why, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ascendtune.check.explain.event import Event
from ascendtune.check.explain.knowledge import entries
from ascendtune.check.explain.matcher import Matcher, filled
from ascendtune.check.explain.memory import Sums, sums_in
from ascendtune.check.explain.scan import Scan
from ascendtune.check.explain.source import STDIN
from ascendtune.check.explain.verdict import Verdict, verdict
from ascendtune.check.finding import Finding
from ascendtune.check.table import as_json as findings_as_json
from ascendtune.core.rundir import RunDir

PLOG = "~/ascend/log/debug/plog/plog-PID_*.log"
"""Where CANN writes what it does not print; one file a process."""


_SEEN_FROM_OUTSIDE = re.compile(r"rank \d+ (?:ended|was killed|crashed)|the processes could not")
"""How `job` words a cause that it knows from torchrun only."""


@dataclass(frozen=True)
class Explanation:
    verdict: Verdict
    scans: tuple[Scan, ...]
    run_cause: dict[str, Any] | None = None
    """`exit_cause` of run.json, where a run was asked about."""
    stop: dict[str, Any] | None = None
    """The same, of a run that ended because it was asked to."""

    @property
    def is_healthy(self) -> bool:
        return self.verdict.certainty == "healthy" and self.run_cause is None

    @property
    def sums(self) -> Sums | None:
        return sums_in(self.verdict.first.text) if self.verdict.first else None

    def headline(self) -> str:
        """One sentence: what, and on which rank."""
        first = self.verdict.first
        if first is None and self.run_cause is not None:
            return str(self.run_cause["what"]) + self._culprit()
        if first is None:
            return f"nothing went wrong: {self.stop['what']}" if self.stop else "no failure was found"
        return first.meaning + self._culprit()

    def _culprit(self) -> str:
        rank, host, first = self.verdict.rank, self.verdict.host, self.verdict.first
        parts = [f"rank {rank}"] if rank is not None else []
        if first is not None and first.device is not None:
            parts.append(f"device {first.device}")
        if host:
            parts.append(f"host {host}")
        return f" ({', '.join(parts)})" if parts else ""

    def findings(self) -> list[Finding]:
        """The first cause in the form that all checks share."""
        first = self.verdict.first
        if first is None and self.run_cause is None:
            return []
        code = first.hit.entry.id if first else "run"
        evidence = (f"{first.where}: {first.text}",) if first else ()
        return [Finding(code, "failure", self.headline(), remedy="; ".join(self.remedies()), evidence=evidence)]

    def remedies(self) -> tuple[str, ...]:
        first = self.verdict.first
        if first is not None and first.hit.entry.remedies:
            return tuple(filled(remedy, first.hit.names) for remedy in first.hit.entry.remedies)
        if first is None and self.run_cause is not None:
            return (str(self.run_cause["remedy"]),)
        if first is not None and first.trace is not None and first.trace.place is not None:
            file, line, _ = first.trace.place
            return (f"look at {file}:{line}; on Ascend, {PLOG} says more about errors of the device",)
        return (f"read the lines shown; on Ascend, {PLOG} says more",)

    def as_json(self) -> dict[str, Any]:
        found = self.verdict
        return {
            "certainty": found.certainty if found.first or self.run_cause is None else "cause",
            "first": _event_json(found.first) if found.first else None,
            "rank": found.rank,
            "host": found.host,
            "memory": self.sums.as_json() if self.sums else None,
            "run_cause": self.run_cause,
            "stop": self.stop,
            "echoes": [_event_json(event) for event in found.echoes],
            "notices": [_event_json(event) for event in found.notices],
            "sources": [{"name": scan.name, "lines": scan.lines, "bytes": scan.bytes} for scan in self.scans],
        }


def explain(names: Sequence[str]) -> Explanation:
    """Explain log files, "-" for standard input, or one run directory.

    Raises:
        InputError: a file cannot be read; a directory is no run.
    """
    cause: dict[str, Any] | None = None
    stop: dict[str, Any] | None = None
    files: list[str] = []
    for name in names:
        if name != STDIN and Path(name).is_dir():
            run = RunDir.open(name)
            record = run.read()
            if record["state"] in ("finished", "stopped"):
                # What its logs hold of earlier attempts, or of ranks that a stop took by surprise, did not end it.
                stop = stop or (_as_asked(record.get("exit_cause")) if record["state"] == "stopped" else None)
                continue
            cause = cause or record.get("exit_cause")
            files += sorted(str(path) for path in run.logs.glob("*.log"))
        else:
            files.append(name)
    scans = tuple(Scan(name, _matcher()).run() for name in files)
    found = _weighed(verdict(scans), cause)
    if cause is not None and found.first is None and found.rank is None:
        found = replace(found, rank=cause.get("rank"))
    return Explanation(found, scans, cause, stop)


def _as_asked(cause: dict[str, Any] | None) -> dict[str, Any]:
    """Why a run stopped; a job that was ended before its workers could write has noted nothing."""
    return cause or {
        "what": "the run was asked to stop",
        "remedy": "the same command goes on from its newest checkpoint",
    }


@cache
def _matcher() -> Matcher:
    return Matcher(entries())


def _weighed(found: Verdict, cause: dict[str, Any] | None) -> Verdict:
    """A cause that our own worker gives with its remedy outdoes echoes, and lines that nothing is known about."""
    first = found.first
    if cause is None or first is None or _SEEN_FROM_OUTSIDE.match(str(cause["what"])):
        return found
    is_echo = first.hit.entry.kind in ("detail", "wrapper", "consequence")
    if is_echo or (not first.is_known and cause.get("exit_code") in (2, 3, 4)):
        return Verdict("healthy", None, (first, *found.echoes), found.notices, cause.get("rank"))
    return found


def _event_json(event: Event) -> dict[str, Any]:
    entry, trace = event.hit.entry, event.trace
    return {
        "id": entry.id,
        "kind": entry.kind,
        "what": event.meaning,
        "causes": list(entry.causes),
        "remedies": list(entry.remedies),
        "source_url": entry.source,
        "checks": list(entry.checks),
        "captured": dict(event.hit.names),
        "line": event.text,
        "file": event.source,
        "line_number": event.number,
        "rank": event.rank,
        "device": event.device,
        "count": event.count,
        "exception": {"type": trace.type, "message": trace.message, "frame": trace.place} if trace else None,
    }


def as_json(explanation: Explanation) -> str:
    return findings_as_json(explanation.headline(), explanation.findings(), **explanation.as_json())
