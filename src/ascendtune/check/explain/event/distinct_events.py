"""The events of one log: the first of each kind for each speaker, and how often it came again."""

from __future__ import annotations

import re
from itertools import pairwise

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.knowledge.entries import KINDS
from ascendtune.check.explain.knowledge.matcher import Hit
from ascendtune.check.explain.traceback.trace import Trace

_EVENTS_KEPT = 2000
_TELLS_LITTLE = KINDS.index("detail")
"""Weight from which on an event goes before others where there are too many."""
_RANKS_KEPT = 1 << 14
_AGAIN_KEPT = 64
_WORDS_KEPT = 300
_SURVIVED_AFTER = 5000
_IN_A_ROW = 5
"""Lines between two that follow each other: other ranks may write in between."""
_CODED = re.compile(r"\bE(?:[A-Z]\d|\d\d)(?!9{3})\d{3}(?=:|\)|\[PID)")
_BLOCK = 12
"""Lines of a block of CANN; of two that say the same, the one with an error code of its own is the one to show."""
_DIGITS = re.compile(r"\d+")


class DistinctEvents:
    """`events` are in the order of the log."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._first: dict[tuple[str, str], Event] = {}
        self._keys: list[tuple[str, str]] = []
        """Of each event its key in `_first`."""

    def came_again(
        self,
        speaker: str,
        kind: str,
        said: str,
        number: int,
        hit: Hit,
        *,
        trace: Trace | None,
        rank: int | None,
        weak: bool,
        quoted: bool,
    ) -> bool:
        """True if this speaker's first of the kind is there already and this line is counted with it."""
        first = self._first.get((speaker, kind))
        if first is None or number - first.last > _SURVIVED_AFTER or first.weak > weak or first.is_quoted > quoted:
            return False
        if first.trace is not None and trace is not None and first.trace.was_caught > trace.was_caught:
            return False
        has_frames = trace is not None and bool(trace.frames)
        if has_frames and first.trace is not None and not first.trace.frames and first.text == said.strip():
            # The exception stood above its traceback as well, without a frame.
            first.trace, first.number = trace, number
        first.count += 1
        first.in_a_row = first.in_a_row + 1 if number - first.last <= _IN_A_ROW else 1
        first.last = number
        if len(first.again) < _AGAIN_KEPT:
            first.again.add(number)
        if rank is not None and len(first.said_by) < _RANKS_KEPT:
            first.said_by.setdefault(rank, said.strip()[:_WORDS_KEPT])
        if number - first.number <= _BLOCK:
            # Lines of one message: each names a part of what is known.
            for name, value in hit.names.items():
                first.hit.names.setdefault(name, value)
        if _CODED.search(said) and number - first.number <= _BLOCK and not _CODED.search(first.text):
            first.text, first.number = said.strip(), number
        return True

    def add(self, kind: str, event: Event) -> None:
        if event.rank is not None:
            event.said_by[event.rank] = event.text[:_WORDS_KEPT]
        if len(self.events) == _EVENTS_KEPT:
            self._drop_one()
        self._first[event.speaker, kind] = event
        self.events.append(event)
        self._keys.append((event.speaker, kind))

    def _drop_one(self) -> None:
        """Make room for a later event: what ended the job may be the last one. The first half stays as it is."""
        later = range(_EVENTS_KEPT // 2, len(self.events))
        place = next((index for index in later if self.events[index].weight >= _TELLS_LITTLE), later.start)
        event, key = self.events.pop(place), self._keys.pop(place)
        if self._first.get(key) is event:
            del self._first[key]

    def mark_heading(self, speaker: str, number: int) -> None:
        """A traceback begins in line `number`: an error that was logged right before it only says that it comes."""
        last = self.events[-1] if self.events else None
        if last is not None and not last.is_known and last.trace is None and last.speaker == speaker:
            last.is_heading = last.last == number - 1

    def last_before(self, speaker: str, number: int) -> Event | None:
        """The known error, without a traceback of its own, that this speaker logged right before line `number`."""
        before = (event for event in self.events if event.speaker == speaker and event.last == number - 1)
        known = [event for event in before if event.is_known and event.trace is None and not event.weak]
        # Readings that depend on the rest of the log are decided when it is read.
        return min(known, key=lambda event: event.entry.is_conditional, default=None)

    def mark_survived(self, lines: int) -> None:
        """An error after which the log went on for thousands of lines did not end the job."""
        grave = [event for event in self.events if not event.weak]
        points = sorted({point for event in grave for point in (event.number, event.last)})
        fatal_from = 0
        for point, following in pairwise([*points, lines]):
            if following - point > _SURVIVED_AFTER:
                fatal_from = point + 1
        for event in self.events:
            event.survived = event.last < fatal_from


def kind_of(hit: Hit, said: str, trace: Trace | None) -> str:
    """What is not known is one of a kind by its words."""
    if hit.entry.kind != "unknown":
        return hit.entry.id
    return trace.text[:80] if trace else "?" + _DIGITS.sub("", said)[:60]
