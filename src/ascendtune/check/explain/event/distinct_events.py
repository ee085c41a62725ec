"""Events of one log: the first of each kind for each speaker, and the number of its repetitions."""

from __future__ import annotations

import re
from itertools import pairwise

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.knowledge.entries import KINDS

_EVENTS_KEPT = 2000
_TELLS_LITTLE = KINDS.index("detail")
"""Weight from which on an event is dropped before others if there are too many."""
_RANKS_KEPT = 1 << 14
_AGAIN_KEPT = 64
_WORDS_KEPT = 300
_SURVIVED_AFTER = 5000
_IN_A_ROW = 5
"""Most lines between consecutive repetitions: other ranks may write in between."""
_CODED = re.compile(r"\bE(?:[A-Z]\d|\d\d)(?!9{3})\d{3}(?=:|\)|\[PID)")
_BLOCK = 12
"""Lines of a block of CANN; among equal ones the line with its own error code is shown."""
_DIGITS = re.compile(r"\d+")


class DistinctEvents:
    """`events` are in the order of the log."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._first: dict[tuple[str, str], Event] = {}
        self._keys: list[tuple[str, str]] = []
        """Key in `_first` of each event."""

    def note(self, event: Event) -> None:
        """Count the event as a repetition of this speaker's first of its kind, or add it."""
        first = self._first.get((event.speaker, _kind_of(event)))
        if first is not None and _says_the_same(first, event):
            _count(first, event)
        else:
            self.add(event)

    def add(self, event: Event) -> None:
        if event.rank is not None:
            event.text_by_rank[event.rank] = event.text[:_WORDS_KEPT]
        if len(self.events) == _EVENTS_KEPT:
            self._drop_one()
        key = event.speaker, _kind_of(event)
        self._first[key] = event
        self.events.append(event)
        self._keys.append(key)

    def _drop_one(self) -> None:
        """Drop an event to make room for a later one, which may have ended the job. The first half is kept."""
        later = range(_EVENTS_KEPT // 2, len(self.events))
        place = next((index for index in later if self.events[index].weight >= _TELLS_LITTLE), later.start)
        event, key = self.events.pop(place), self._keys.pop(place)
        if self._first.get(key) is event:
            del self._first[key]

    def mark_heading(self, speaker: str, number: int) -> None:
        """Mark an error logged directly before line `number`, where a traceback begins: it only announces that."""
        last = self.events[-1] if self.events else None
        if last is not None and not last.is_known and last.trace is None and last.speaker == speaker:
            last.is_heading = last.last == number - 1

    def last_before(self, speaker: str, number: int) -> Event | None:
        """Known error without its own traceback that this speaker logged directly before line `number`."""
        before = (event for event in self.events if event.speaker == speaker and event.last == number - 1)
        known = [event for event in before if event.is_known and event.trace is None and not event.weak]
        # Entries that depend on the rest of the log are decided after it is read.
        return min(known, key=lambda event: event.entry.is_conditional, default=None)

    def mark_survived(self, lines: int) -> None:
        """Mark errors after which the log continues for thousands of lines: they did not end the job."""
        grave = [event for event in self.events if not event.weak]
        points = sorted({point for event in grave for point in (event.number, event.last)})
        fatal_from = 0
        for point, following in pairwise([*points, lines]):
            if following - point > _SURVIVED_AFTER:
                fatal_from = point + 1
        for event in self.events:
            event.survived = event.last < fatal_from


def _kind_of(event: Event) -> str:
    """Kind of an event: its entry, or its words if no entry matches."""
    if event.is_known:
        return event.entry.id
    return event.trace.text[:80] if event.trace else "?" + _DIGITS.sub("", event.text)[:60]


def _says_the_same(first: Event, event: Event) -> bool:
    """Whether `event` adds nothing to the first of its kind, and did not end a job that survived the first."""
    if event.number - first.last > _SURVIVED_AFTER or first.weak > event.weak or first.is_quoted > event.is_quoted:
        return False
    return first.trace is None or event.trace is None or first.trace.was_caught <= event.trace.was_caught


def _count(first: Event, event: Event) -> None:
    number = event.number
    if event.is_raised and first.trace is not None and not first.trace.frames and first.text == event.text:
        # The exception was also logged above its traceback, without a frame.
        first.trace, first.number = event.trace, number
    first.count += 1
    first.in_a_row = first.in_a_row + 1 if number - first.last <= _IN_A_ROW else 1
    first.last = number
    if len(first.again) < _AGAIN_KEPT:
        first.again.add(number)
    if event.rank is not None and len(first.text_by_rank) < _RANKS_KEPT:
        first.text_by_rank.setdefault(event.rank, event.text[:_WORDS_KEPT])
    if number - first.number <= _BLOCK:
        # Lines of one message: each captures some of the names.
        for name, value in event.hit.names.items():
            first.hit.names.setdefault(name, value)
        if _CODED.search(event.text) and not _CODED.search(first.text):
            first.text, first.number = event.text, number
