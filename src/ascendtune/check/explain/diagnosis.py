"""Which of all that was said is the first cause?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ascendtune.check.explain.ends import INTERRUPTED, Ends
from ascendtune.check.explain.event import CODE, Event
from ascendtune.check.explain.facts import Facts, satisfied
from ascendtune.check.explain.missing import Missing, awaited, is_one_of_several, waits_among
from ascendtune.check.explain.scan import Scan
from ascendtune.check.explain.script_commands import gives_way, is_of_script

Certainty = Literal["healthy", "cause", "symptom", "unexplained"]

_LAUNCHER = "launcher"
_KILLED = "killed"
"""Begin the names of entries by which a shell or a launcher says that a process was killed; it does not say why."""
_NEAR_LINES = 60
_MESSAGE_LINES = 10
"""Lines below an exception that are likely to belong to its message."""
_NOT_FATAL = ("notice",)
_TAIL = 200
"""An error line without more counts only among the last lines: a job that continues was not ended by it."""
_OF_COLLECTIVES = ("nccl", "cuda-and-collectives", "ascend-hccl", _LAUNCHER)
"""Families of what a rank says when another one does not answer."""
_LEAST_WORDS = 4
"""Words of a message that says more than the plain mistake that it was raised for."""
_NEAR_END = 20
"""Lines that may follow a bad figure of the last steps."""
_EXCERPT_LINES = 6
"""A log of so few lines is an excerpt: a complaint at its end is what its reader asks about."""
_IN_VAIN = 3
"""A complaint that is repeated so often, and is the last that a log says, is what the job hangs on; of an exception,
once is enough."""


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
    beside = _names_beside(scans)
    ordered = _without_own_words([event for event in in_order(scans) if _meets(event, facts, beside)])
    notices = tuple(event for event in ordered if event.hit.entry.kind in _NOT_FATAL)
    lengths = {scan.name: scan.lines for scan in scans}
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
            event for event in grave if event.weak and (_in_vain(event, lengths) or _precedes(event, fatal))
        ] or fatal
    elif all(event.is_of_clean_up for event in fatal):
        # What was never finished cannot be closed: a warning before it may say why.
        fatal = [event for event in grave if event.weak and _precedes(event, fatal)] + fatal
    else:
        fatal = _with_warnings(grave, fatal)
    if not fatal:
        return Diagnosis("healthy", None, notices=notices, dismissed=_dismissed(ordered, harmless, survived))
    ends = Ends(fatal)
    first = _first_cause(fatal, ends)
    rank, host = _guilty(first, scans)
    missing = awaited(first, fatal, scans)
    if missing is not None and (told := _told_by(missing.ranks, fatal)) is not None:
        # A rank that did not join has said why.
        first, missing = told, None
        rank, host = _guilty(first, scans)
    if missing is None and rank == first.rank and is_one_of_several(first, fatal):
        rank, host = None, None
    if missing is not None:
        rank, host = missing.first_rank, None
        if first.trace is not None and not first.trace.type:
            first = waits_among(fatal)[0]
    # One reading of a line is enough: the first cause's for its own, the best for every other.
    readings = {(event.source, event.number): event for event in reversed(fatal)}
    echoes = tuple(event for place, event in reversed(readings.items()) if place != (first.source, first.number))
    rival = _rival(first, fatal, scans) or (ends.later(first) if first.is_cause else None)
    return Diagnosis(_certainty(first), first, echoes, notices, rank=rank, host=host, missing=missing, rival=rival)


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


def _names_beside(scans: Sequence[Scan]) -> dict[str, dict[str, str] | None]:
    """Entry -> what its `beside` names in the logs; None where they do not hold it."""
    entries = {event.hit.entry.id: event.hit.entry for scan in scans for event in scan.events}
    # A scan decodes them each time.
    texts = [text for scan in scans for text in (scan.head, scan.tail)]
    names: dict[str, dict[str, str] | None] = {}
    for entry in entries.values():
        if entry.beside is not None:
            match = next(filter(None, map(entry.beside.search, texts)), None)
            names[entry.id] = (
                None if match is None else {key: value for key, value in match.groupdict().items() if value}
            )
    return names


def _meets(event: Event, facts: Facts, beside: dict[str, dict[str, str] | None]) -> bool:
    """Whether the logs have the facts and the text that the entry asks for, whose names are added to the line's."""
    named = satisfied(event.hit.entry.requires, facts)
    told = beside.get(event.hit.entry.id, {})
    if named is None or told is None:
        return False
    event.hit.names.update(named | told)
    return True


def _without_own_words(events: list[Event]) -> list[Event]:
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


def _follows(event: Event, fatal: list[Event]) -> bool:
    """Whether what causes `event` was found. That a rank waited for another one causes its own errors only."""
    return bool(event.hit.entry.echo_of) and any(
        other.hit.entry.id in event.hit.entry.echo_of
        and (not other.hit.entry.waits or (other.source, other.speaker) == (event.source, event.speaker))
        for other in fatal
    )


def _with_warnings(grave: list[Event], fatal: list[Event]) -> list[Event]:
    """What was said as a warning is believed when what is known to follow from it has followed."""
    foretold = {name for event in fatal for name in event.hit.entry.echo_of}
    return [event for event in grave if not event.weak or event.hit.entry.id in foretold]


def _in_vain(event: Event, lengths: dict[str, int]) -> bool:
    if lengths[event.source] - event.last > (_NEAR_END if event.hit.entry.lasting else 0):
        return False
    # What a job may recover from is said once in most excerpts: a job that goes on has a longer log.
    may_recover = event.hit.entry.lasting and event.hit.entry.specific
    is_excerpt = lengths[event.source] <= (_NEAR_END if may_recover else _EXCERPT_LINES)
    is_known = event.hit.entry.kind in ("cause", "symptom")
    return event.trace is not None or (is_known and (event.in_a_row >= _IN_VAIN or is_excerpt))


def _precedes(event: Event, cut_off: list[Event]) -> bool:
    """Whether a known cause was said, as a warning, shortly before a traceback without its exception."""
    ends = [trace.trace.first_line for trace in cut_off if trace.trace is not None and trace.source == event.source]
    is_near = any(0 < end - event.last <= _MESSAGE_LINES for end in ends)
    return is_near and event.hit.entry.kind == "cause"


def _first_cause(fatal: list[Event], ends: Ends) -> Event:
    """The earliest of those that explain most; an exception that led to a known one gives way to it."""
    overruled = set()
    for event in fatal:
        parent = event.trace.parent if event.trace and not event.says_little and event.weight == 0 else None
        while parent is not None:
            overruled.add(id(parent))
            parent = parent.parent
    candidates = [
        event
        for event in fatal
        if not (_follows(event, fatal) or _ends(event, fatal) or gives_way(event, fatal))
        and not ends.overrule(event)
        and not (event.says_little and id(event.trace) in overruled)
        and not (event.is_of_clean_up and not all(event.is_of_clean_up for event in fatal))
    ] or fatal
    first = min(candidates, key=lambda event: (event.weight, event.is_quoted and event.hit.entry.family == CODE))
    if first.is_quoted:
        raised = next((event for event in candidates if event.hit.entry is first.hit.entry and event.is_raised), first)
        if raised is first:
            # What is only quoted was caught, if something else is known to have ended the job.
            raised = next((event for event in candidates if event.is_cause and not event.says_little), first)
        # Another entry may know the raised line better: its best reading stands first.
        first = next(event for event in candidates if (event.source, event.number) == (raised.source, raised.number))
    if first.says_little:
        return _better_known(first, candidates)
    if first.hit.entry.general:
        return _known_below(first, candidates) or first
    return _more_specific(first, candidates) if first.hit.entry.kind == "wrapper" else first


def _ends(event: Event, fatal: list[Event]) -> bool:
    """Whether an interrupt only ended what had failed before, in words other than those that it was raised among; and
    whether "Killed" follows a failure."""
    if event.hit.entry.id.startswith(_KILLED):
        return any(_failed_before(each, event) or _is_told_after(each, event) for each in fatal)
    if event.hit.entry.id not in INTERRUPTED:
        return False
    handled, parent = set(), event.trace.parent if event.trace else None
    while parent is not None:
        handled.add(id(parent))
        parent = parent.parent
    return any(
        each.hit.entry.kind in ("symptom", "detail") or (each.is_raised and not each.is_known)
        for each in fatal[: fatal.index(event)]
        if id(each.trace) not in handled
    )


def _failed_before(event: Event, end: Event) -> bool:
    """Whether `event` is a failure that was said shortly before `end`."""
    is_near = event.source == end.source and 0 < end.number - event.last <= _NEAR_LINES
    is_other = is_of_script(event) or (event.hit.entry.waits and end.rank not in (None, event.rank))
    return is_near and not is_other and (event.hit.entry.kind in ("cause", "symptom", "detail") or event.is_raised)


def _is_told_after(event: Event, end: Event) -> bool:
    """Whether the next lines name the cause: a log that is buffered comes after what the shell prints."""
    is_near = event.source == end.source and 0 < event.number - end.number <= _MESSAGE_LINES
    return is_near and event.hit.entry.kind == "cause" and not event.hit.entry.id.startswith(_KILLED)


def _better_known(first: Event, candidates: list[Event]) -> Event:
    """An unknown exception is explained by a known cause near it or below it, and by the rest of its own message."""
    same_speaker = [
        event
        for event in candidates
        if event.is_known and not event.says_little and (event.source, event.speaker) == (first.source, first.speaker)
    ]
    for event in same_speaker:
        below = event.number - first.number
        is_near = abs(below) <= _NEAR_LINES or (below > 0 and event.hit.entry.id not in INTERRUPTED)
        if event.weight == 0 and is_near:
            return event
    for event in same_speaker:
        if event.weight == 1 and (_touches(event, first) or _is_announced(event, first)):
            return event
    if first.is_vague:
        return _within_message(first, candidates) or _more_specific(first, candidates)
    return _in_own_words(first, candidates) or first


def _within_message(first: Event, candidates: list[Event]) -> Event | None:
    """The exception of a traceback that the message of `first`, which says nothing, quotes."""
    for event in candidates:
        begin = event.trace.first_line if event.is_raised and event.trace is not None else 0
        is_within = event.source == first.source and 1 < begin - first.number <= _MESSAGE_LINES
        if first.is_raised and is_within and _has_words(event) and not _led_to(first, event):
            return event
    return None


def _in_own_words(first: Event, candidates: list[Event]) -> Event | None:
    """The exception in words of its own that a program raised while it handled the plain mistake `first`."""
    if not first.is_known:
        return None
    for event in candidates:
        if event.is_raised and _has_words(event) and event.trace is not first.trace and _led_to(first, event):
            return event
    return None


def _has_words(event: Event) -> bool:
    is_named = event.trace is None or bool(event.trace.type)
    return is_named and not event.is_known and not event.is_vague and len(event.message.split()) >= _LEAST_WORDS


def _known_below(first: Event, candidates: list[Event]) -> Event | None:
    """The cause that a more specific entry finds in the message of `first`, or in the exception that it led to."""
    for event in candidates:
        same_speaker = (event.source, event.speaker) == (first.source, first.speaker)
        in_message = 0 < event.number - first.number <= _MESSAGE_LINES
        if event.is_cause and same_speaker and (in_message or _led_to(first, event)):
            return event
    return None


def _led_to(first: Event, event: Event) -> bool:
    """Whether `event` belongs to an exception that was raised while that of `first` was handled, or to that itself."""
    trace = event.trace or event.above
    while trace is not None and trace is not first.trace:
        trace = trace.parent
    return trace is not None


def _touches(event: Event, exception: Event) -> bool:
    """Whether a line belongs to an exception's message, or was said right before the traceback began."""
    begin = exception.trace.first_line if exception.trace else exception.number
    return 0 < event.number - exception.number <= _MESSAGE_LINES or 0 < begin - event.number <= _MESSAGE_LINES


def _is_announced(event: Event, exception: Event) -> bool:
    """Whether a line is among those below an exception whose message says only that the error of a worker follows."""
    return exception.message.rstrip().endswith(":") and 0 < event.number - exception.number <= _NEAR_LINES


def _more_specific(first: Event, candidates: list[Event]) -> Event:
    """An exception that only says that something failed gives way to what was said before it, in whatever words."""
    for event in candidates:
        before = event.source == first.source and event.number < first.number
        if before and event.hit.entry.kind in ("unknown", "detail") and not (event.is_vague or event.is_heading):
            return event
    return first


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
    killed = (event for event in own if event.hit.entry.id.startswith(_KILLED))
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
