"""Restarted jobs: a later attempt that finished after the failed one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ascendtune.check.explain.cause.diagnosis import Diagnosis, diagnose
from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.facts.facts import Facts
from ascendtune.check.explain.language import say
from ascendtune.check.explain.rank.rank_phase import FINISHED, phase_of

_ATTEMPT = re.compile(r"(?P<job>^|.*[/_.-])(?:attempt|restart|retry)[_-]?(?P<number>\d+)(?=[/._-])")
"""torchrun --log-dir: DIRECTORY/RUN_ID/attempt_0/RANK/stderr.log; scripts: train-retry1.log"""
_RESTARTS = re.compile(
    r"\b[Rr]estart(?:ing)? (?:the )?(?:training )?(?:worker group|workers|job)\b|\bDUE TO JOB REQUEUE\b|"
    r"\bRe-?queu(?:ed|ing) (?:the )?job\b|\brestart_count=[1-9]",
)
"""Line of a launcher or a scheduler that restarts all processes: torchrun, Ray Train, Slurm."""
_TRAINED = re.compile(r"\btrain_runtime\b|\bTraining completed\b")
"""Lines of transformers at the end of a training."""
_LAST = 5


@dataclass(frozen=True)
class Attempts:
    """Number of the attempt that failed, and of a later one that finished."""

    failed: int
    finished: int

    def told(self, failure: str) -> str:
        return say(
            "attempt {finished} finished; attempt {failed} had failed: {failure}",
            finished=self.finished,
            failed=self.failed,
            failure=failure,
        )


def attempts_of(diagnosis: Diagnosis, scans: Sequence[Scan], facts: Facts) -> Attempts | None:
    """Find a later attempt that finished; None if the newest one is the failed one, failed as well, or does not report
    its end."""
    failed = _attempt(diagnosis.first.source) if diagnosis.first is not None else None
    if failed is None:
        return _of_one_log(diagnosis, scans[0]) if len(scans) == 1 else None
    job, number = failed
    numbers = {scan.name: each[1] for scan in scans if (each := _attempt(scan.name)) is not None and each[0] == job}
    newest = max(numbers.values())
    own = [scan for scan in scans if numbers.get(scan.name) == newest]
    if newest == number or len(numbers) < len(scans) or not any(map(_has_finished, own)):
        return None
    return Attempts(number, newest) if diagnose(own, facts).certainty == "healthy" else None


def _of_one_log(diagnosis: Diagnosis, scan: Scan) -> Attempts | None:
    """The same for a log to which each attempt was appended."""
    restarts = [number for number, row in scan.last_lines if _RESTARTS.search(row) is not None]
    failed = diagnosis.first.last if diagnosis.first is not None else 0
    if not failed or not restarts or restarts[-1] <= failed or not _has_finished(scan):
        return None
    later = (event for event in scan.events if event.last > restarts[-1])
    if any(not (event.survived or event.weak or event.entry.kind == "notice") for event in later):
        return None
    attempt = sum(number <= failed for number in restarts)
    return Attempts(attempt, max(attempt + 1, len(restarts)))


def _attempt(name: str) -> tuple[str, int] | None:
    match = _ATTEMPT.match(name)
    return (match["job"], int(match["number"])) if match is not None else None


def _has_finished(scan: Scan) -> bool:
    last = [line for line in scan.tail.splitlines() if line.strip()][-_LAST:]
    return any(phase_of(line) == FINISHED or _TRAINED.search(line) for line in last)
