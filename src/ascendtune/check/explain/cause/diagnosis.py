"""Selects the first cause among the events of all logs."""

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
"""Families of failures of a rank while another one does not answer."""
SEEN_FROM_OUTSIDE: tuple[CauseKind, ...] = ("exit", "signal", "launcher")
"""Kinds of recorded causes that contain only the way a process ended: the logs may explain it."""


@dataclass(frozen=True)
class Diagnosis:
    certainty: Certainty
    """`symptom`: the failure is known, its reason is not in these logs."""
    first: Event | None
    echoes: tuple[Event, ...] = ()
    """Other failures, in order, without those in the line of the first cause."""
    notices: tuple[Event, ...] = ()
    dismissed: tuple[Event, ...] = ()
    """If no failure was found: known failures that were warnings, or that the job survived; those that explain most
    first."""
    rank: int | None = None
    """Rank that failed first; None if unknown."""
    host: str | None = None
    missing: Missing | None = None
    """Ranks that the first cause, a time-out, waited for."""
    rival: Event | None = None
    """Another possible cause: no times show that it came later, or it ended the program after a logged first cause."""


def diagnose(scans: Sequence[Scan], facts: Facts) -> Diagnosis:
    """Find the first cause in the scans of any number of files and ranks."""
    failures = find_failures(scans, facts)
    fatal, notices = failures.fatal, failures.notices
    if not fatal:
        return Diagnosis("healthy", None, notices=notices, dismissed=failures.dismissed)
    own = without_echoes(fatal)
    ends = Ends(own)
    first = first_cause(fatal, ends)
    missing = awaited(first, fatal, Ranks(scans))
    if missing is not None and (reported := _told_by(missing.ranks, fatal)) is not None:
        # A rank that did not join has reported the reason.
        first, missing = reported, None
    rank, host = _place_of(first, fatal, scans) if missing is None else (missing.first_rank, None)
    if missing is not None and first.trace is not None and not first.trace.type:
        first = waits_among(fatal)[0]
    # One event for each line is sufficient: the first cause for its own line, the best one for any other.
    readings = {event.source_line: event for event in reversed(fatal)}
    others = tuple(event for place, event in reversed(readings.items()) if place != first.source_line)
    rival = _rival(first, own, scans) or (ends.later(first) if missing is None and first.weight == 0 else None)
    if rival is not None and is_of_many_alone(rival, fatal):
        rival = None
    return Diagnosis(_certainty(first), first, others, notices, rank=rank, host=host, missing=missing, rival=rival)


def weighed(diagnosis: Diagnosis, cause: dict[str, Any] | None) -> Diagnosis:
    """Give the recorded cause of a run precedence over weaker events of its logs.

    A cause that the worker recorded with its remedy precedes echoes and unknown lines. A signal, which was only seen
    from outside, precedes echoes alone.
    """
    first = diagnosis.first
    if cause is None or first is None:
        return diagnosis
    is_echo = first.entry.kind in ("wrapper", "consequence")
    if cause.get("kind") in SEEN_FROM_OUTSIDE and not (cause.get("kind") == "signal" and is_echo):
        return diagnosis
    if is_echo or first.entry.kind == "detail" or (not first.is_known and cause.get("exit_code") in (2, 3, 4)):
        return Diagnosis("healthy", None, (first, *diagnosis.echoes), diagnosis.notices, rank=cause.get("rank"))
    return diagnosis


def _rival(first: Event, fatal: list[Event], scans: Sequence[Scan]) -> Event | None:
    """A known cause in another log, if nothing shows which of the two was first."""
    if not first.is_known or first.weight > 0 or are_timed(scans):
        return None
    ids = {event.entry.id for event in fatal}
    others = (event for event in fatal if event.source != first.source and event.entry.id != first.entry.id)
    return next((event for event in others if event.is_known and event.weight == 0 and not echoes(event, ids)), None)


def _told_by(ranks: Sequence[int], fatal: list[Event]) -> Event | None:
    """First failure of the ranks that others waited for."""
    own = [event for event in fatal if event.rank in ranks]
    killed = (event for event in own if event.entry.id.startswith(KILLED))
    others = (event for event in own if event.entry.family not in _OF_COLLECTIVES)
    events = (event for event in others if event.is_raised or event.trace or event.entry.kind == "symptom")
    return next(events, next(killed, None))


def _certainty(first: Event) -> Certainty:
    if first.entry.kind in ("cause", "symptom"):
        return "cause" if first.entry.kind == "cause" else "symptom"
    return "symptom" if first.entry.kind == "wrapper" else "unexplained"


def _place_of(first: Event, fatal: list[Event], scans: Sequence[Scan]) -> tuple[int | None, str | None]:
    """Rank and host that failed first; None if several ranks failed alike, or it is unknown."""
    rank, host = _named_place(first, scans)
    is_of_all = first.entry.id == ALONE and first.trace is None
    if rank == first.rank and (is_of_all or is_one_of_several(first, fatal)):
        return None, None
    return rank, host


def _named_place(first: Event, scans: Sequence[Scan]) -> tuple[int | None, str | None]:
    names = first.hit.names
    if first.entry.family == _LAUNCHER:
        # Its own lines number the ranks of a machine; its summary numbers all of them.
        own = sorted(scans, key=lambda scan: scan.name != first.source)
        for launcher in filter(None, (scan.launcher for scan in own)):
            return launcher.rank, launcher.host
    host = names.get("host") or first.host
    rank = names.get("guilty_rank") or names.get("rank")
    if rank is not None and rank.isdecimal():
        return int(rank), host
    if first.rank is not None:
        return first.rank, host
    for scan in scans:
        if scan.launcher is not None:
            return scan.launcher.rank, host or scan.launcher.host
    return None, host
