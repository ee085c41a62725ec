"""Which of all that was said is the first cause?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ascendtune.check.explain.cause.failures import are_timed, echoes, find_failures
from ascendtune.check.explain.cause.first_cause import ALONE, KILLED, first_cause, is_of_many_alone, without_echoes
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.fatal import Ends
from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.facts.facts import Facts
from ascendtune.check.explain.rank.missing import awaited, is_one_of_several, waits_among
from ascendtune.check.explain.rank.missing_report import Missing
from ascendtune.check.explain.rank.rank_lines import Ranks
from ascendtune.core.exit_cause import CauseKind

Certainty = Literal["healthy", "cause", "symptom", "unexplained"]
_LAUNCHER = "launcher"
_OF_COLLECTIVES = ("nccl", "cuda-and-collectives", "ascend-hccl", _LAUNCHER)
"""Families of what a rank says when another one does not answer."""
SEEN_FROM_OUTSIDE: tuple[CauseKind, ...] = ("exit", "signal", "launcher")
"""Causes that say how a process ended and not why: the logs may say more."""


@dataclass(frozen=True)
class Diagnosis:
    certainty: Certainty
    """`symptom`: what broke is known, why is not in these logs."""
    first: Event | None
    echoes: tuple[Event, ...] = ()
    """The other trouble, in order; without what the first cause's own lines say again."""
    notices: tuple[Event, ...] = ()
    dismissed: tuple[Event, ...] = ()
    """Where no failure was found: trouble that was said as a warning, or after which the job went on; what explains
    most first."""
    rank: int | None = None
    """The rank that failed first, as far as anything says it."""
    host: str | None = None
    missing: Missing | None = None
    """The ranks that the first cause, a time-out, waited for."""
    rival: Event | None = None
    """Another cause: no clock says that it came later, or it ended the program, and the first cause was only logged."""


def diagnose(scans: Sequence[Scan], facts: Facts) -> Diagnosis:
    """Weigh everything that the scans found, of any number of files and ranks."""
    found = find_failures(scans, facts)
    fatal, notices = found.fatal, found.notices
    if not fatal:
        return Diagnosis("healthy", None, notices=notices, dismissed=found.dismissed)
    own = without_echoes(fatal)
    ends = Ends(own)
    first = first_cause(fatal, ends)
    missing = awaited(first, fatal, Ranks(scans))
    if missing is not None and (told := _told_by(missing.ranks, fatal)) is not None:
        # A rank that did not join has said why.
        first, missing = told, None
    rank, host = _place_of(first, fatal, scans) if missing is None else (missing.first_rank, None)
    if missing is not None and first.trace is not None and not first.trace.type:
        first = waits_among(fatal)[0]
    # One reading of a line is enough: the first cause's for its own, the best for every other.
    readings = {event.source_line: event for event in reversed(fatal)}
    others = tuple(event for place, event in reversed(readings.items()) if place != first.source_line)
    rival = _rival(first, own, scans) or (ends.later(first) if missing is None and first.weight == 0 else None)
    if rival is not None and is_of_many_alone(rival, fatal):
        rival = None
    return Diagnosis(_certainty(first), first, others, notices, rank=rank, host=host, missing=missing, rival=rival)


def weighed(found: Diagnosis, cause: dict[str, Any] | None) -> Diagnosis:
    """A cause that our own worker gives with its remedy outdoes echoes, and lines that nothing is known about. That a
    signal ended a process was seen from outside: it outdoes echoes alone."""
    first = found.first
    if cause is None or first is None:
        return found
    is_echo = first.entry.kind in ("wrapper", "consequence")
    if cause.get("kind") in SEEN_FROM_OUTSIDE and not (cause.get("kind") == "signal" and is_echo):
        return found
    if is_echo or first.entry.kind == "detail" or (not first.is_known and cause.get("exit_code") in (2, 3, 4)):
        return Diagnosis("healthy", None, (first, *found.echoes), found.notices, rank=cause.get("rank"))
    return found


def _rival(first: Event, fatal: list[Event], scans: Sequence[Scan]) -> Event | None:
    """A known cause in another log, where nothing tells which of the two was first."""
    if not first.is_known or first.weight > 0 or are_timed(scans):
        return None
    ids = {event.entry.id for event in fatal}
    others = (event for event in fatal if event.source != first.source and event.entry.id != first.entry.id)
    return next((event for event in others if event.is_known and event.weight == 0 and not echoes(event, ids)), None)


def _told_by(ranks: Sequence[int], fatal: list[Event]) -> Event | None:
    """The failure reported by the first rank that others waited for."""
    own = [event for event in fatal if event.rank in ranks]
    killed = (event for event in own if event.entry.id.startswith(KILLED))
    others = (event for event in own if event.entry.family not in _OF_COLLECTIVES)
    told = (event for event in others if event.is_raised or event.trace or event.entry.kind == "symptom")
    return next(told, next(killed, None))


def _certainty(first: Event) -> Certainty:
    if first.entry.kind in ("cause", "symptom"):
        return "cause" if first.entry.kind == "cause" else "symptom"
    return "symptom" if first.entry.kind == "wrapper" else "unexplained"


def _place_of(first: Event, fatal: list[Event], scans: Sequence[Scan]) -> tuple[int | None, str | None]:
    """The rank and the host that failed first; None where several ranks failed alike, or nothing tells."""
    rank, host = _named_place(first, scans)
    is_of_all = first.entry.id == ALONE and first.trace is None
    if rank == first.rank and (is_of_all or is_one_of_several(first, fatal)):
        return None, None
    return rank, host


def _named_place(first: Event, scans: Sequence[Scan]) -> tuple[int | None, str | None]:
    names = first.hit.names
    if first.entry.family == _LAUNCHER:
        # Its own lines count ranks per machine; its summary counts all of them.
        own = sorted(scans, key=lambda scan: scan.name != first.source)
        for launcher in filter(None, (scan.launcher for scan in own)):
            return launcher.rank, launcher.host
    host = names.get("host") or first.host
    said = names.get("guilty_rank") or names.get("rank")
    if said is not None and said.isdecimal():
        return int(said), host
    if first.rank is not None:
        return first.rank, host
    for scan in scans:
        if scan.launcher is not None:
            return scan.launcher.rank, host or scan.launcher.host
    return None, host
