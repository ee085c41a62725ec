"""Which rank is missing, when not all have come to the end, where it was last, and where it has spoken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ascendtune.check.comm.notes import RankNotes
from ascendtune.check.comm.start import Ran
from ascendtune.check.finding import Finding

CODE = "ranks"


def trouble(ran: Ran, timeout_seconds: float) -> Finding:
    """The finding for ranks of which at least one has not done its work.

    A rank that failed of itself is named first; then one for which others waited; then one that ended, or was ended,
    without a word. Who merely lost the connection to another is not to blame.
    """
    failed = [each for each in ran.notes if each.one("error") and not each.is_echo]
    if failed:
        return _finding(ran, failed, f"failed at {failed[0].one('at')}: {failed[0].one('error')}")
    absent = sorted({rank for each in ran.notes for rank in each.one("absent") or ()})
    if absent:
        waiting = next(each for each in ran.notes if each.one("absent"))
        at, last = waiting.one("at"), ran.notes[absent[0]].one("at")
        waited = f"{at}: {ran.ranks.label(waiting.rank)} waited {timeout_seconds:g} s"
        before = f"it was last at {last}" if last else "it has not said a word"
        what = f"did not come back from {waited}" if last == at else f"never came to {waited}; {before}"
        return _finding(ran, [ran.notes[rank] for rank in absent], what)
    silent = [each for each in ran.notes if not each.is_done and not each.one("error")]
    if silent:
        return _silent(ran, silent)
    told = next(each for each in ran.notes if each.one("error"))
    everyone = ran.ranks.labels(range(ran.ranks.count))
    return Finding(
        CODE,
        "failure",
        f"{everyone} lost each other at {told.one('at')}: {told.one('error')}",
        expected="every rank reaches every other",
        remedy="look at the link and at the interface that the backend uses: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME "
        "or HCCL_SOCKET_IFNAME",
        evidence=_evidence(ran, ran.notes),
    )


def _silent(ran: Ran, silent: Sequence[RankNotes]) -> Finding:
    furthest_behind = min(len(each.notes) for each in silent)
    ranks = [each for each in silent if len(each.notes) == furthest_behind]
    failure = ran.outcome.failure
    # The launcher reports the rank that ended first. NCCL ends ranks that wait for another one, though: then the first
    # to end is not the one that is behind.
    dead = [each for each in ranks if failure is not None and failure.ending and each.rank == failure.rank]
    if failure is not None and dead:
        return _finding(ran, dead, f"{failure.ending} at {dead[0].one('at') or 'its start'}")
    return _finding(ran, ranks, f"did not come back from {ranks[0].one('at') or 'its start'}")


def _finding(ran: Ran, guilty: Sequence[RankNotes], what: str) -> Finding:
    log = ran.log(guilty[0].rank)
    if log is None:
        look = "look at the messages above, which are those of rank 0"
    else:
        look = f"ascendtune explain {log}" if _said(log) else f"its log says nothing ({log})"
    return Finding(
        CODE,
        "failure",
        f"{ran.ranks.labels([each.rank for each in guilty])} {what}",
        expected="every rank takes part to the end",
        remedy=f"{look}; check its device and its links with `ascendtune doctor --deep`",
        evidence=_evidence(ran, guilty),
    )


def _evidence(ran: Ran, guilty: Sequence[RankNotes]) -> tuple[str, ...]:
    logs = [log for each in guilty if (log := ran.log(each.rank))]
    return tuple(f"{log}: {said}" for log in logs if (said := _said(log)))


def _said(log: Path) -> str:
    """The last words in a log; empty where there are none."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
