"""Separates the events that may have ended the job from those that it survived."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.package_mismatch import name_mismatch
from ascendtune.check.explain.event.posted import asks_about_failure, shows_trouble_alone, went_on_after
from ascendtune.check.explain.event.scan import Scan, texts_of
from ascendtune.check.explain.facts.facts import Facts, satisfied
from ascendtune.check.explain.knowledge.entries import EXPRESSION, IMPORTER
from ascendtune.check.explain.knowledge.headers import name_package
from ascendtune.check.explain.knowledge.symbols import name_provider
from ascendtune.check.explain.log.line import read

MESSAGE_LINES = 10
"""Lines below an exception that probably belong to its message."""
_LACKING = {"name-undefined": "name", "none-used": EXPRESSION}
"""Entries for a name without a value, with the capture that contains the name."""
_LEAST_NAME = 4
_WORD = re.compile(r"\w+")
_NOT_FATAL = ("notice",)
_TAIL = 200
"""Lines at the end of a log in which a bare error line counts: a job that continues was not ended by it."""
_NEAR_END = 20
"""Most lines after a bad metric of the last steps."""
_EXCERPT_LINES = 6
"""Most lines of an excerpt: an error at its end is probably the failure that its reader asks about."""
_FIRST_LINES = 2000
"""Characters of a log that show whether its lines have prefixes."""
_CLOCKS = 15 * 60
"""Seconds that two clocks of different time zones are at least apart."""
_IN_VAIN = 3
"""Repetitions from which on a warning at the end of a log is the reason for which the job hangs; for an exception one
occurrence is sufficient."""


@dataclass(frozen=True)
class Failures:
    """Events of all logs, in order."""

    fatal: list[Event]
    """Events that may have ended the job; one for each entry that matches a line."""
    notices: tuple[Event, ...]
    """Known harmless lines."""
    dismissed: tuple[Event, ...]
    """Known failures that were warnings, or that the job survived; those that explain most first."""


def find_failures(scans: Sequence[Scan], facts: Facts) -> Failures:
    """Find the events that may have ended the job, in the logs of any number of files and ranks."""
    beside = _found_beside(scans)
    ordered = _without_unmatched([event for event in in_order(scans) if _meets(event, facts, beside)])
    notices = tuple(event for event in ordered if event.entry.kind in _NOT_FATAL)
    harmless = {event.entry.id for event in notices}
    # Such a notice precedes the other events of its lines.
    survived = {_lines_of(event) for event in notices if event.entry.is_conditional}
    trouble = [event for event in ordered if not echoes(event, harmless) and _lines_of(event) not in survived]
    lengths = {scan.name: scan.lines for scan in scans}
    grave = [event for event in trouble if _is_fatal(event, lengths)]
    return Failures(_believed(grave, scans, lengths), notices, _dismissed(trouble))


def _believed(grave: list[Event], scans: Sequence[Scan], lengths: dict[str, int]) -> list[Event]:
    """Errors, with the warnings that explain them, or after which nothing follows."""
    fatal = [event for event in grave if not event.weak]
    if all(event.trace is not None and not event.trace.type for event in fatal):
        # No errors, or only tracebacks without their exceptions.
        posts = {
            scan.name: texts
            for scan in scans
            if asks_about_failure(texts := scan.tail.splitlines()) or shows_trouble_alone(texts)
        }
        return [
            event
            for event in grave
            if event.weak and (_in_vain(event, lengths) or _is_asked_about(event, posts) or _precedes(event, fatal))
        ] or fatal
    if all(event.is_of_clean_up for event in fatal):
        # Clean-up fails on objects that were not completed: a warning before it may explain that.
        return [event for event in grave if event.weak and _precedes(event, fatal)] + fatal
    return _with_warnings(grave, fatal)


def _dismissed(trouble: list[Event]) -> tuple[Event, ...]:
    """Known failures, the last of each kind; those that explain most first."""
    of_kind = {event.entry.id: event for event in trouble if event.entry.kind in ("cause", "symptom")}
    return tuple(sorted(of_kind.values(), key=lambda event: event.weight))


def _lines_of(event: Event) -> tuple[str, int, int]:
    return event.source, event.number, event.last


def _found_beside(scans: Sequence[Scan]) -> dict[str, re.Match[str] | None]:
    """Entry -> match of its `beside` in the logs; None if there is none."""
    entries = {event.entry.id: event.entry for scan in scans for event in scan.events}
    # A scan decodes them at each access.
    texts = texts_of(scans)
    found = {
        entry.id: next(filter(None, map(entry.beside.search, texts)), None)
        for entry in entries.values()
        if entry.beside is not None
    }
    if not all(found.values()) and (plain := [_without_prefixes(text) for text in texts if _is_prefixed(text)]):
        found |= {
            name: next(filter(None, map(beside.search, plain)), None)
            for name, match in found.items()
            if match is None and (beside := entries[name].beside) is not None
        }
    return found


def _is_prefixed(text: str) -> bool:
    """Whether launchers or loggers prefix the lines of a log."""
    lines = text[:_FIRST_LINES].splitlines()
    return sum(read(line).message != line for line in lines) > len(lines) // 2


def _without_prefixes(text: str) -> str:
    return "\n".join(read(line).message for line in text.splitlines())


def _meets(event: Event, facts: Facts, beside: dict[str, re.Match[str] | None]) -> bool:
    """Whether the logs contain the required facts and text of the entry; adds their captures to the event."""
    named = satisfied(event.entry.requires, facts)
    match = beside.get(event.entry.id)
    if named is None or (match is None and event.entry.beside is not None):
        return False
    if match is not None and (values := {key: value for key, value in match.groupdict().items() if value}):
        named = named | values
        event.beside = _whole_lines(match)
    event.hit.names.update(named)
    name_mismatch(event.hit, event.message, facts, event.trace.code if event.trace is not None else "")
    name_provider(event.hit, event.text)
    name_package(event.hit)
    return True


def _whole_lines(match: re.Match[str]) -> str:
    """Lines of a match, joined by "↵"."""
    first, end = match.string.rfind("\n", 0, match.start()) + 1, match.string.find("\n", match.end())
    lines = match.string[first : end if end >= 0 else len(match.string)].splitlines()
    return " ↵ ".join(filter(None, map(str.strip, lines)))


def _without_unmatched(events: list[Event]) -> list[Event]:
    """Drop the unknown events of lines that an entry explains."""
    known = {event.source_line for event in events if event.is_known}
    return [event for event in events if event.is_known or event.source_line not in known]


def in_order(scans: Sequence[Scan]) -> list[Event]:
    """Sort events by time if every file has times, else file by file; within a file by line, or by time if the lines of
    its ranks were not merged in their order."""
    if len(scans) == 1:
        return _in_order_of_ranks(scans[0].events)
    timed = are_timed(scans)
    places = {scan.name: index for index, scan in enumerate(scans)}
    earliest = {
        scan.name: min((event.time for event in scan.events if event.time is not None), default=0.0) for scan in scans
    }

    def key(event: Event) -> tuple[float, int, int]:
        time = event.time if event.time is not None else earliest[event.source]
        return (time if timed else 0.0, places[event.source], event.number)

    return sorted((event for scan in scans for event in scan.events), key=key)


def _in_order_of_ranks(events: Sequence[Event]) -> list[Event]:
    """Sort the events of one log by line; those of ranks with one clock by time, on the places that they have."""
    by_line = sorted(events, key=lambda event: event.number)
    times = {id(event): event.time for event in by_line if event.rank is not None and event.time is not None}
    of_ranks = defaultdict[int | None, list[float]](list)
    for event in by_line:
        if id(event) in times:
            of_ranks[event.rank].append(times[id(event)])
    is_one_clock = bool(times) and max(times.values()) - min(times.values()) < _CLOCKS
    if len(of_ranks) < 2 or not is_one_clock or any(each != sorted(each) for each in of_ranks.values()):
        return by_line
    by_time = iter(sorted((event for event in by_line if id(event) in times), key=lambda event: times[id(event)]))
    return [next(by_time) if id(event) in times else event for event in by_line]


def are_timed(scans: Sequence[Scan]) -> bool:
    """Whether every file with events has the time of at least one."""
    return all(any(event.time is not None for event in scan.events) for scan in scans if scan.events)


def _is_fatal(event: Event, lengths: dict[str, int]) -> bool:
    if event.survived or event.entry.kind in _NOT_FATAL:
        return False
    has_words_only = event.entry.kind in ("detail", "unknown") and event.trace is None
    return not (has_words_only and lengths[event.source] - event.last > _TAIL)


def echoes(event: Event, ids: set[str]) -> bool:
    """Whether `event` is an echo of one of the entries `ids`."""
    return not ids.isdisjoint(event.entry.echo_of)


def _with_warnings(grave: list[Event], fatal: list[Event]) -> list[Event]:
    """Errors, with the warnings of which a known consequence followed, or of names that are missing later. A wrapper
    counts as a consequence only if no error names its cause."""
    is_explained = any(event.is_known and event.weight == 0 for event in fatal)
    followed = (event.entry for event in fatal if event.entry.kind != "wrapper" or not is_explained)
    foretold = {name for entry in followed for name in entry.echo_of}
    named = {id(event): failure for event in grave if event.weak and (failure := _without_name(event, fatal))}
    for event in grave:
        if (failure := named.get(id(event))) is not None and IMPORTER in failure.hit.names:
            event.hit.names.setdefault(IMPORTER, failure.hit.names[IMPORTER])
    return [event for event in grave if not event.weak or event.entry.id in foretold or id(event) in named]


def _without_name(warning: Event, fatal: list[Event]) -> Event | None:
    """Exception about an undefined name, or None, that could not be imported by a warning before."""
    if warning.entry.kind != "cause" or "import" not in warning.text:
        return None
    names = set(_WORD.findall(warning.text))
    for event in fatal:
        lacking = event.hit.names.get(_LACKING.get(event.entry.id, ""), "").rpartition(".")[2]
        if event.source == warning.source and len(lacking) >= _LEAST_NAME and lacking in names:
            return event
    return None


def _in_vain(event: Event, lengths: dict[str, int]) -> bool:
    if lengths[event.source] - event.last > (_NEAR_END if event.entry.lasting else 0):
        return False
    # An excerpt has mostly one such line: a job that recovered has a longer log.
    may_recover = event.entry.lasting and event.entry.specific
    is_excerpt = lengths[event.source] <= (_NEAR_END if may_recover else _EXCERPT_LINES)
    is_known = event.entry.kind in ("cause", "symptom")
    return event.trace is not None or (is_known and (event.in_a_row >= _IN_VAIN or is_excerpt))


def _is_asked_about(event: Event, posts: dict[str, list[str]]) -> bool:
    """Whether a warning is in a person's post about a failure, without progress after it."""
    texts = posts.get(event.source)
    is_known = event.entry.kind in ("cause", "symptom")
    return texts is not None and is_known and not went_on_after(texts[event.last :])


def _precedes(event: Event, cut_off: list[Event]) -> bool:
    """Whether a warning with a known cause is shortly before a traceback without its exception."""
    ends = [trace.trace.first_line for trace in cut_off if trace.trace is not None and trace.source == event.source]
    is_near = any(0 < end - event.last <= MESSAGE_LINES for end in ends)
    return is_near and event.entry.kind == "cause"
