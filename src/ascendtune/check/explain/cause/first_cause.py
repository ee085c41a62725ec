"""Selects the first cause among the failures that may have ended a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from ascendtune.check.explain.cause.failures import MESSAGE_LINES
from ascendtune.check.explain.event.event import CODE, Event
from ascendtune.check.explain.event.fatal import INTERRUPTED, Ends, has_stepped_between, was_logged
from ascendtune.check.explain.event.script_commands import gives_way, is_of_script
from ascendtune.check.explain.knowledge.matcher import rank

KILLED = "killed"
"""Prefix of entries for a shell's or launcher's report of a killed process, without its reason."""
_PIP_FAILED = (
    *("pip-temporary-full", "pip-download-full", "pip-environment-full", "pip-disk-full"),
    *("pip-no-version", "pip-no-connection", "pip-index-certificate", "pip-index-name", "pip-index-silent"),
    *("pip-index-proxy", "pip-file-status", "pip-no-wheel-for-python"),
)
"""Entries for pip's failures to install."""
ALONE = "world-of-one"
"""Entry for jobs whose processes each run as the only one: all of them use the same device and port."""
_OF_MANY_ALONE = re.compile(
    r"out of memory|[Aa]ddress already in use|EADDRINUSE|[Pp]rocess group has not been initialized|"
    r"Expected to (?:have finished reduction|mark a variable ready)"
)
_ENDS_OF_PROGRAMS = ("child-command", "sigsegv", "crash-with-dump")
"""Entries for the way a program ended, without its reason."""
_ABOVE_END = 3
"""Most lines from a program's last message to the report of its end."""
_NEAR_LINES = 60
_LEAST_WORDS = 4
"""Fewest words of a message that is more useful than the plain mistake before it."""
_CHECK_OF_RESULT = re.compile(
    r"(?:assert\w*|check)(?: failed)?\W{1,3}(?:ret|rc|err|res|result|status)\w* ?(?:==|!=) ?(?:0|\w*success|\w*ok)\b",
    re.IGNORECASE,
)
"""An assertion on the result of a call, which failed before with its own message."""


def first_cause(fatal: list[Event], ends: Ends) -> Event:
    """The earliest of the failures that explain most; a known exception precedes those that led to it."""
    telling = (event.trace for event in fatal if event.trace and not event.says_little and event.weight == 0)
    overruled = {id(parent) for trace in telling for parent in trace.parents}
    own = without_echoes(fatal)
    is_only_clean_up = all(event.is_of_clean_up for event in fatal)

    def is_explained(event: Event) -> bool:
        return (
            _follows(event, fatal)
            or is_of_many_alone(event, fatal)
            or _ends(event, fatal, ends)
            or gives_way(event, own)
            or _was_not_installed(event, fatal)
            or _is_told_better(event, fatal)
            or _is_told_above(event, fatal)
            or ends.overrule(event)
            or (event.says_little and id(event.trace) in overruled)
            or (event.is_of_clean_up and not is_only_clean_up)
        )

    candidates = [event for event in own if not is_explained(event)] or fatal
    first = min(candidates, key=lambda event: (event.weight, event.is_quoted and event.entry.family == CODE))
    if first.is_quoted:
        same = (event for event in candidates if event.entry is first.entry and event.is_raised)
        # A quoted exception was caught, if another failure is known to have ended the job.
        known = (event for event in candidates if event.is_cause and not event.says_little)
        raised = next(chain(same, known), first)
        # Another entry may match the raised line better: the best one is first.
        first = next(event for event in candidates if event.source_line == raised.source_line)
    if first.says_little:
        return _better_known(first, candidates)
    if first.entry.general:
        return _known_below(first, candidates) or first
    is_check = first.entry.kind == "detail" and _CHECK_OF_RESULT.search(first.text) is not None
    return _more_specific(first, candidates) if is_check or first.entry.kind == "wrapper" else first


def without_echoes(fatal: list[Event]) -> list[Event]:
    """Remove lines whose best event is an echo of another failure: their other events are echoes as well."""
    best = {event.source_line: event for event in reversed(fatal)}
    echoes = {place for place, event in best.items() if _follows(event, fatal)}
    return [event for event in fatal if event.source_line not in echoes] or fatal


def _follows(event: Event, fatal: list[Event]) -> bool:
    """Whether a cause of `event` was found; the wait of a rank causes only errors of the same rank."""
    return bool(event.entry.echo_of) and any(
        other.entry.id in event.entry.echo_of
        and (not other.entry.waits or (other.source, other.speaker) == (event.source, event.speaker))
        for other in fatal
    )


def is_of_many_alone(event: Event, fatal: Sequence[Event]) -> bool:
    """Whether a failure follows from processes that each run as the only one: they share a device or a port, or lack a
    process group."""
    is_in_the_way = "device_memory" in event.entry.checks or _OF_MANY_ALONE.search(event.text) is not None
    return is_in_the_way and any(other.entry.id == ALONE for other in fatal)


def _is_told_better(event: Event, fatal: list[Event]) -> bool:
    """Whether a repetition of the event has a better event on the same line: a pod's events report in one line that an
    image was not pulled, and in another the reason."""
    return any(
        other.number in event.again
        and other.source == event.source
        and other.is_cause
        and other.entry is not event.entry
        and rank(other.hit) < rank(event.hit)
        for other in fatal
        if event.weight == 0
    )


def _is_told_above(event: Event, fatal: list[Event]) -> bool:
    """Whether the program whose end the event reports has printed an unknown failure directly above."""
    if event.entry.id not in _ENDS_OF_PROGRAMS:
        return False
    begin = event.trace.first_line if event.trace is not None else event.number
    return any(
        other.entry.kind in ("unknown", "detail")
        and not (other.is_vague or other.is_raised)
        and len(other.message.split()) >= _LEAST_WORDS
        and other.source == event.source
        and 0 < begin - other.last <= _ABOVE_END
        for other in fatal
    )


def _was_not_installed(event: Event, fatal: list[Event]) -> bool:
    """Whether a module is missing after pip failed to install packages."""
    is_missing = event.trace is not None and event.trace.type == "ModuleNotFoundError"
    return is_missing and any(
        other.entry.id in _PIP_FAILED and other.source == event.source and other.number < event.number
        for other in fatal
    )


def _ends(event: Event, fatal: list[Event], ends: Ends) -> bool:
    """Whether an interrupt, or "Killed", follows a failure; exceptions handled at the interrupt do not count."""
    if event.entry.id.startswith(KILLED):
        before = (each for each in fatal if _failed_before(each, event) and not ends.overrule(each))
        return any(before) or any(_is_told_after(each, event) for each in fatal)
    if event.entry.id not in INTERRUPTED:
        return False
    handled = {id(parent) for parent in event.trace.parents} if event.trace else ()
    return any(
        each.entry.kind in ("symptom", "detail") or (each.is_raised and not each.is_known)
        for each in fatal[: fatal.index(event)]
        if id(each.trace) not in handled
    )


def _failed_before(event: Event, end: Event) -> bool:
    """Whether `event` is a failure shortly before `end`."""
    is_near = event.source == end.source and 0 < end.number - event.last <= _NEAR_LINES
    is_other = is_of_script(event) or (event.entry.waits and end.rank not in (None, event.rank))
    return is_near and not is_other and (event.entry.kind in ("cause", "symptom", "detail") or event.is_raised)


def _is_told_after(event: Event, end: Event) -> bool:
    """Whether the next lines contain the cause: a buffered log comes after the shell's output."""
    is_near = event.source == end.source and 0 < event.number - end.number <= MESSAGE_LINES
    return is_near and event.entry.kind == "cause" and not event.entry.id.startswith(KILLED)


def _better_known(first: Event, candidates: list[Event]) -> Event:
    """Known cause near or below an unknown exception, or in the rest of its message; else the exception itself."""
    same_speaker = [
        event
        for event in candidates
        if event.is_known
        and not event.says_little
        and event.is_of_process_of(first)
        and not (was_logged(event) and has_stepped_between(event, first))
    ]
    for event in same_speaker:
        below = event.number - first.number
        is_near = abs(below) <= _NEAR_LINES or (below > 0 and event.entry.id not in INTERRUPTED)
        if event.weight == 0 and is_near:
            return event
    for event in same_speaker:
        if event.weight == 1 and (_touches(event, first) or _is_announced(event, first)):
            return event
    if first.is_vague:
        return _within_message(first, candidates) or _more_specific(first, candidates)
    return _in_own_words(first, candidates) or first


def _within_message(first: Event, candidates: list[Event]) -> Event | None:
    """Exception of a traceback that the vague message of `first` quotes."""
    for event in candidates:
        begin = event.trace.first_line if event.is_raised and event.trace is not None else 0
        is_within = event.source == first.source and 1 < begin - first.number <= MESSAGE_LINES
        if first.is_raised and is_within and _has_words(event) and not _led_to(first, event):
            return event
    return None


def _in_own_words(first: Event, candidates: list[Event]) -> Event | None:
    """Exception with its own message that a program raised while it handled the plain mistake `first`."""
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
    """Cause by a more specific entry in the message of `first`, or in the exception that it led to."""
    for event in candidates:
        same_speaker = event.is_of_process_of(first)
        in_message = 0 < event.number - first.number <= MESSAGE_LINES
        if event.is_cause and same_speaker and (in_message or _led_to(first, event)):
            return event
    return None


def _led_to(first: Event, event: Event) -> bool:
    """Whether `event` belongs to the exception of `first`, or to one that was raised while that was handled."""
    trace = event.trace or event.above
    return trace is not None and any(each is first.trace for each in (trace, *trace.parents))


def _touches(event: Event, exception: Event) -> bool:
    """Whether a line belongs to an exception's message, or is shortly before its traceback."""
    begin = exception.trace.first_line if exception.trace else exception.number
    return 0 < event.number - exception.number <= MESSAGE_LINES or 0 < begin - event.number <= MESSAGE_LINES


def _is_announced(event: Event, exception: Event) -> bool:
    """Whether a line is below an exception whose message only announces the error of a worker."""
    return exception.message.rstrip().endswith(":") and 0 < event.number - exception.number <= _NEAR_LINES


def _more_specific(first: Event, candidates: list[Event]) -> Event:
    """First specific message before an exception that names nothing; else the exception itself."""
    for event in candidates:
        before = event.source == first.source and event.number < first.number
        if before and event.entry.kind in ("unknown", "detail") and not (event.is_vague or event.is_heading):
            return event
    return first
