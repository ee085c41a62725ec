"""Which of all that was said is the first cause?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ascendtune.check.explain.cause.first_cause import (
    ALONE,
    KILLED,
    MESSAGE_LINES,
    first_cause,
    is_of_many_alone,
    without_echoes,
)
from ascendtune.check.explain.event.caller_and_library import name_mismatch
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.fatal import Ends
from ascendtune.check.explain.event.posted import asks_about_failure, went_on_after
from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.facts.facts import Facts, satisfied
from ascendtune.check.explain.knowledge.entries import EXPRESSION, IMPORTER
from ascendtune.check.explain.knowledge.headers import name_package
from ascendtune.check.explain.knowledge.symbols import name_provider
from ascendtune.check.explain.rank.missing import awaited, is_one_of_several, waits_among
from ascendtune.check.explain.rank.missing_report import Missing
from ascendtune.check.explain.rank.rank_lines import Ranks
from ascendtune.core.exit_cause import CauseKind

Certainty = Literal["healthy", "cause", "symptom", "unexplained"]
_NO_MODULE = "No module named"
_LACKING = {"name-undefined": "name", "none-used": EXPRESSION}
"""Entries of a name that has no value, and where they keep it."""
_LEAST_NAME = 4
_WORD = re.compile(r"\w+")

_LAUNCHER = "launcher"
_NOT_FATAL = ("notice",)
_TAIL = 200
"""An error line without more counts only among the last lines: a job that continues was not ended by it."""
_OF_COLLECTIVES = ("nccl", "cuda-and-collectives", "ascend-hccl", _LAUNCHER)
"""Families of what a rank says when another one does not answer."""
_NEAR_END = 20
"""Lines that may follow a bad figure of the last steps."""
_EXCERPT_LINES = 6
"""A log of so few lines is an excerpt: a complaint at its end is what its reader asks about."""
_IN_VAIN = 3
"""A complaint that is repeated so often, and is the last that a log says, is what the job hangs on; of an exception,
once is enough."""

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
    beside, ranks = _found_beside(scans), Ranks(scans)
    ordered = _without_unmatched([event for event in in_order(scans) if _meets(event, facts, beside)])
    notices = tuple(event for event in ordered if event.hit.entry.kind in _NOT_FATAL)
    lengths = {scan.name: scan.lines for scan in scans}
    posts = {scan.name: texts for scan in scans if asks_about_failure(texts := scan.tail.splitlines())}
    harmless = {event.hit.entry.id for event in notices}
    # What such a notice says of its lines goes before the other readings of the same lines.
    survived = {(event.source, event.number, event.last) for event in notices if event.hit.entry.is_conditional}
    grave = [
        event
        for event in ordered
        if _is_fatal(event, lengths)
        and not _echoes(event, harmless)
        and (event.source, event.number, event.last) not in survived
    ]
    fatal = [event for event in grave if not event.weak]
    if all(event.trace is not None and not event.trace.type for event in fatal):
        # Nothing at all, or a traceback that lacks its exception.
        fatal = [
            event
            for event in grave
            if event.weak and (_in_vain(event, lengths) or _is_asked_about(event, posts) or _precedes(event, fatal))
        ] or fatal
    elif all(event.is_of_clean_up for event in fatal):
        # What was never finished cannot be closed: a warning before it may say why.
        fatal = [event for event in grave if event.weak and _precedes(event, fatal)] + fatal
    else:
        fatal = _with_warnings(grave, fatal)
    if not fatal:
        return Diagnosis("healthy", None, notices=notices, dismissed=_dismissed(ordered, harmless, survived))
    own = without_echoes(fatal)
    ends = Ends(own)
    first = first_cause(fatal, ends)
    rank, host = _guilty(first, scans)
    missing = awaited(first, fatal, ranks)
    if missing is not None and (told := _told_by(missing.ranks, fatal)) is not None:
        # A rank that did not join has said why.
        first, missing = told, None
        rank, host = _guilty(first, scans)
    is_of_all = first.hit.entry.id == ALONE and first.trace is None
    if missing is None and rank == first.rank and (is_of_all or is_one_of_several(first, fatal)):
        rank, host = None, None
    if missing is not None:
        rank, host = missing.first_rank, None
        if first.trace is not None and not first.trace.type:
            first = waits_among(fatal)[0]
    # One reading of a line is enough: the first cause's for its own, the best for every other.
    readings = {(event.source, event.number): event for event in reversed(fatal)}
    echoes = tuple(event for place, event in reversed(readings.items()) if place != (first.source, first.number))
    rival = _rival(first, own, scans) or (ends.later(first) if missing is None and first.weight == 0 else None)
    if rival is not None and is_of_many_alone(rival, fatal):
        rival = None
    return Diagnosis(_certainty(first), first, echoes, notices, rank=rank, host=host, missing=missing, rival=rival)


def weighed(found: Diagnosis, cause: dict[str, Any] | None) -> Diagnosis:
    """A cause that our own worker gives with its remedy outdoes echoes, and lines that nothing is known about."""
    first = found.first
    if cause is None or first is None or cause.get("kind") in SEEN_FROM_OUTSIDE:
        return found
    is_echo = first.hit.entry.kind in ("detail", "wrapper", "consequence")
    if is_echo or (not first.is_known and cause.get("exit_code") in (2, 3, 4)):
        return Diagnosis("healthy", None, (first, *found.echoes), found.notices, rank=cause.get("rank"))
    return found


def lacks_alone(found: Diagnosis, scans: Sequence[Scan]) -> bool:
    """Whether of several ranks one alone does not find a module."""
    if found.first is None or found.rank is None or _NO_MODULE not in found.first.text:
        return False
    said = [(rank, event.text) for event in found.echoes for rank in event.said_by]
    others = {rank for rank, _ in said} | {scan.rank for scan in scans if not scan.is_empty}
    return bool(others - {found.rank, None}) and not any(
        _NO_MODULE in text for rank, text in said if rank != found.rank
    )


def _dismissed(ordered: list[Event], harmless: set[str], survived: set[tuple[str, int, int]]) -> tuple[Event, ...]:
    """Known trouble that is not believed to have ended the job: of each kind the last."""
    of_kind = {
        event.hit.entry.id: event
        for event in ordered
        if event.hit.entry.kind in ("cause", "symptom")
        and not _echoes(event, harmless)
        and (event.source, event.number, event.last) not in survived
    }
    return tuple(sorted(of_kind.values(), key=lambda event: event.weight))


def _found_beside(scans: Sequence[Scan]) -> dict[str, re.Match[str] | None]:
    """Entry -> where the logs hold its `beside`; None where they do not."""
    entries = {event.hit.entry.id: event.hit.entry for scan in scans for event in scan.events}
    # A scan decodes them each time.
    texts = [text for scan in scans for text in (scan.head, scan.tail)]
    return {
        entry.id: next(filter(None, map(entry.beside.search, texts)), None)
        for entry in entries.values()
        if entry.beside is not None
    }


def _meets(event: Event, facts: Facts, beside: dict[str, re.Match[str] | None]) -> bool:
    """Whether the logs have the facts and the text that the entry asks for, whose names are added to the line's."""
    named = satisfied(event.hit.entry.requires, facts)
    match = beside.get(event.hit.entry.id)
    if named is None or (match is None and event.hit.entry.beside is not None):
        return False
    if match is not None and (told := {key: value for key, value in match.groupdict().items() if value}):
        named = named | told
        event.beside = _whole_lines(match)
    event.hit.names.update(named)
    name_mismatch(event.hit, event.message, facts, event.trace.code if event.trace is not None else "")
    name_provider(event.hit, event.text)
    name_package(event.hit)
    return True


def _whole_lines(match: re.Match[str]) -> str:
    """The lines that a match lies in, joined by a sign for the line end."""
    first, end = match.string.rfind("\n", 0, match.start()) + 1, match.string.find("\n", match.end())
    lines = match.string[first : end if end >= 0 else len(match.string)].splitlines()
    return " ↵ ".join(filter(None, map(str.strip, lines)))


def _without_unmatched(events: list[Event]) -> list[Event]:
    """Drops a line's own words where an entry explains the line."""
    known = {(event.source, event.number) for event in events if event.is_known}
    return [event for event in events if event.is_known or (event.source, event.number) not in known]


def in_order(scans: Sequence[Scan]) -> list[Event]:
    """By time where every file tells the time, else file by file; within a file as they stand."""
    timed = _are_timed(scans)
    places = {scan.name: index for index, scan in enumerate(scans)}
    earliest = {
        scan.name: min((event.time for event in scan.events if event.time is not None), default=0.0) for scan in scans
    }

    def key(event: Event) -> tuple[float, int, int]:
        time = event.time if event.time is not None else earliest[event.source]
        return (time if timed and len(scans) > 1 else 0.0, places[event.source], event.number)

    return sorted((event for scan in scans for event in scan.events), key=key)


def _are_timed(scans: Sequence[Scan]) -> bool:
    return all(any(event.time is not None for event in scan.events) for scan in scans if scan.events)


def _is_fatal(event: Event, lengths: dict[str, int]) -> bool:
    if event.survived or event.hit.entry.kind in _NOT_FATAL:
        return False
    has_words_only = event.hit.entry.kind in ("detail", "unknown") and event.trace is None
    return not (has_words_only and lengths[event.source] - event.last > _TAIL)


def _echoes(event: Event, ids: set[str]) -> bool:
    return not ids.isdisjoint(event.hit.entry.echo_of)


def _with_warnings(grave: list[Event], fatal: list[Event]) -> list[Event]:
    """What was said as a warning is believed when what is known to follow from it has followed; what only prints around
    other errors says so where no error names its cause."""
    is_explained = any(event.is_known and event.weight == 0 for event in fatal)
    followed = (event.hit.entry for event in fatal if event.hit.entry.kind != "wrapper" or not is_explained)
    foretold = {name for entry in followed for name in entry.echo_of}
    named = {id(event): failure for event in grave if event.weak and (failure := _without_name(event, fatal))}
    for event in grave:
        if (failure := named.get(id(event))) is not None and IMPORTER in failure.hit.names:
            event.hit.names.setdefault(IMPORTER, failure.hit.names[IMPORTER])
    return [event for event in grave if not event.weak or event.hit.entry.id in foretold or id(event) in named]


def _without_name(warning: Event, fatal: list[Event]) -> Event | None:
    """The exception that finds the name undefined, or None, of which a warning says that it could not be imported."""
    if warning.hit.entry.kind != "cause" or "import" not in warning.text:
        return None
    names = set(_WORD.findall(warning.text))
    for event in fatal:
        lacking = event.hit.names.get(_LACKING.get(event.hit.entry.id, ""), "").rpartition(".")[2]
        if event.source == warning.source and len(lacking) >= _LEAST_NAME and lacking in names:
            return event
    return None


def _in_vain(event: Event, lengths: dict[str, int]) -> bool:
    if lengths[event.source] - event.last > (_NEAR_END if event.hit.entry.lasting else 0):
        return False
    # What a job may recover from is said once in most excerpts: a job that goes on has a longer log.
    may_recover = event.hit.entry.lasting and event.hit.entry.specific
    is_excerpt = lengths[event.source] <= (_NEAR_END if may_recover else _EXCERPT_LINES)
    is_known = event.hit.entry.kind in ("cause", "symptom")
    return event.trace is not None or (is_known and (event.in_a_row >= _IN_VAIN or is_excerpt))


def _is_asked_about(event: Event, posts: dict[str, list[str]]) -> bool:
    """Whether a warning stands in a person's post about a failure, and nothing goes on after it."""
    texts = posts.get(event.source)
    is_known = event.hit.entry.kind in ("cause", "symptom")
    return texts is not None and is_known and not went_on_after(texts[event.last :])


def _precedes(event: Event, cut_off: list[Event]) -> bool:
    """Whether a known cause was said, as a warning, shortly before a traceback without its exception."""
    ends = [trace.trace.first_line for trace in cut_off if trace.trace is not None and trace.source == event.source]
    is_near = any(0 < end - event.last <= MESSAGE_LINES for end in ends)
    return is_near and event.hit.entry.kind == "cause"


def _rival(first: Event, fatal: list[Event], scans: Sequence[Scan]) -> Event | None:
    """A known cause in another log, where nothing tells which of the two was first."""
    if not first.is_known or first.weight > 0 or _are_timed(scans):
        return None
    ids = {event.hit.entry.id for event in fatal}
    others = (event for event in fatal if event.source != first.source and event.hit.entry.id != first.hit.entry.id)
    return next((event for event in others if event.is_known and event.weight == 0 and not _echoes(event, ids)), None)


def _told_by(ranks: Sequence[int], fatal: list[Event]) -> Event | None:
    """The failure reported by the first rank that others waited for."""
    own = [event for event in fatal if event.rank in ranks]
    killed = (event for event in own if event.hit.entry.id.startswith(KILLED))
    others = (event for event in own if event.hit.entry.family not in _OF_COLLECTIVES)
    told = (event for event in others if event.is_raised or event.trace or event.hit.entry.kind == "symptom")
    return next(told, next(killed, None))


def _certainty(first: Event) -> Certainty:
    if first.hit.entry.kind in ("cause", "symptom"):
        return "cause" if first.hit.entry.kind == "cause" else "symptom"
    return "symptom" if first.hit.entry.kind == "wrapper" else "unexplained"


def _guilty(first: Event, scans: Sequence[Scan]) -> tuple[int | None, str | None]:
    names = first.hit.names
    if first.hit.entry.family == _LAUNCHER:
        # Its own lines count ranks per machine; its summary counts all of them.
        for launcher in filter(None, (scan.launcher for scan in scans)):
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
