"""Separates the failures that ended the processes of a job from those that were only logged before."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.script_commands import is_of_script
from ascendtune.check.explain.event.unmatched import explains_itself

_OF_DEVICE = re.compile(r"\b(?:CUDA|cuda|NPU|HIP) error|device-side|\bNCCL|\bHCCL|\bacl|ERR\d{5}|\bE[A-Z1-9]\d{4}\b")
"""Words of exceptions of a device, which may have printed the failure before."""
_OF_CRASH = re.compile(r"Fatal Python error|core dumped|Segmentation fault|terminate called|^(?:Killed|Aborted)$")
"""Words of the interpreter, a runtime or the shell for the end of a program."""
_OF_THREAD = ("threading.py in ",)
_MAY_FOLLOW = ("FileNotFoundError",)
"""Exceptions that most often follow from an earlier failure that was only logged."""
_OF_TWO_TYPES = re.compile(
    r"'(?!NoneType')[\w.]+'(?: and |, not |\) to |, found )'?(?!NoneType)|must be \w+, not (?!NoneType)\w"
)
"""Words of a mistake between two existing values, which does not follow from something missing."""
_NEAR_LINES = 80
"""Most lines between a logged failure and a traceback that may follow from it."""
INTERRUPTED = "interrupted", "ended-by-signal"
"""Entries for programs that were asked to end."""


class Ends:
    """Failures that ended the processes of a job, among the events of all its logs."""

    def __init__(self, events: Sequence[Event]) -> None:
        ends = [event for event in events if (event.is_raised and _is_an_end(event)) or _is_crash(event)]
        self._of_source, self._uncaught = defaultdict[str, list[Event]](list), defaultdict[str, list[Event]](list)
        for end in ends:
            self._of_source[end.source].append(end)
            if not was_logged(end):
                self._uncaught[end.source].append(end)
        self._failures = [event for event in events if event.weight == 0 and _ended_a_process(event)]
        waits = [event for event in events if event.entry.waits]
        self._waited = {_process_of(event): event.last for event in sorted(waits, key=lambda wait: wait.last)}

    def overrule(self, event: Event) -> bool:
        """Whether `event` was only logged, and the exception that ended a program is the cause.

        An exception that ended the same program later is the cause if its own cause is known, or if it came much later;
        otherwise it may follow from the logged failure. A process that waited for others later was not ended by the
        failure that it logged, and an exception of a thread does not end a process: if another process failed, that
        failure is the cause.
        """
        if event.weight or not was_logged(event):
            return False
        end = self.later(event)
        if end is not None and (_says_why(end) or _is_later(end, event)):
            return True
        process = _process_of(event)
        went_on = is_of_thread(event) or self._waited.get(process, 0) > event.last
        others = [failure for failure in self._failures if _process_of(failure) != process]
        ended = [failure for failure in others if failure.is_raised and _says_why(failure)]
        return bool(others) and (went_on or (bool(ended) and not event.weak))

    def later(self, event: Event) -> Event | None:
        """Last exception of the program after `event`, if `event` was only logged; None if there is none.

        Later ones of several logged exceptions may follow from the first, and a device may have printed before what
        it reports: these do not count.
        """
        if not was_logged(event):
            return None
        ends = [
            end
            for end in (self._of_source if event.trace is None else self._uncaught)[event.source]
            if event.last < _begin_of(end)
            and (event.speaker == "" or event.is_of_process_of(end))
            # A failure that a device reports causes the crash.
            and (end.trace is not None or _OF_DEVICE.search(event.text) is None)
            and event.entry.id not in end.entry.echo_of
            # A later one of the same family may only repeat the logged one.
            and (end.entry.family != event.entry.family or _says_why(end))
        ]
        if any(_says_the_same(end, event) for end in ends):
            # The logged failure was raised as well.
            return None
        # The best of several entries for a line is the first.
        return max(ends, key=lambda end: (_says_why(end), end.number), default=None)


def is_of_thread(event: Event) -> bool:
    """Whether an exception ended a thread, and not its program."""
    return event.trace is not None and event.trace.passed(_OF_THREAD)


def has_stepped_between(event: Event, end: Event) -> bool:
    """Whether the process reported a loss between `event` and `end`."""
    return event.next_loss is not None and event.next_loss < _begin_of(end)


def was_logged(event: Event) -> bool:
    """Whether the program logged `event` itself and may have continued."""
    if event.is_raised and event.trace is not None:
        return event.trace.was_caught
    if event.trace is not None:
        # An exception without its frames: the program printed it, if it trained on.
        return event.next_loss is not None
    return not (is_of_script(event) or _is_crash(event))


def _ended_a_process(event: Event) -> bool:
    return not (was_logged(event) or event.weak or event.is_of_clean_up)


def _process_of(event: Event) -> tuple[str, str] | int:
    return (event.source, event.speaker) if event.rank is None else event.rank


def _says_the_same(end: Event, event: Event) -> bool:
    is_alike = end.entry is event.entry and end.hit.names == event.hit.names
    return is_alike or end.message in event.text


def _is_later(end: Event, event: Event) -> bool:
    """Whether the program continued so long after `event` that `end` probably does not follow from it."""
    if end.trace is None:
        return has_stepped_between(event, end)
    may_follow = end.trace.type in _MAY_FOLLOW
    return end.number - event.last > _NEAR_LINES or (has_stepped_between(event, end) and not may_follow)


def _begin_of(end: Event) -> int:
    return end.number if end.trace is None else end.trace.first_line


def _is_crash(event: Event) -> bool:
    return event.trace is None and not event.weak and _OF_CRASH.search(event.text) is not None


def _is_an_end(event: Event) -> bool:
    is_told = event.weight == 0 and (event.is_known or explains_itself(event))
    is_aside = event.weak or event.is_of_clean_up or event.entry.id in INTERRUPTED
    return is_told and not is_aside and _OF_DEVICE.search(event.text) is None


def _says_why(end: Event) -> bool:
    """Whether the cause of an exception is known, and is probably not an earlier failure."""
    if end.trace is None or not end.is_cause:
        return False
    is_of_types = end.trace.type == "TypeError" and _OF_TWO_TYPES.search(end.message) is not None
    return (not end.says_little or is_of_types) and end.trace.type not in _MAY_FOLLOW
