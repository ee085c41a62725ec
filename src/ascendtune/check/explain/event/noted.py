"""Makes the events of one log, from lines, exceptions and other words of failure."""

from __future__ import annotations

from collections.abc import Sequence

from ascendtune.check.explain.event.distinct_events import DistinctEvents
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.raised import hits_of, name_caller_and_library
from ascendtune.check.explain.event.unmatched import unknown_exception, unknown_line
from ascendtune.check.explain.knowledge.matcher import Hit, Matcher, best, with_spare
from ascendtune.check.explain.log import level, message_lines
from ascendtune.check.explain.log import line as lines_of
from ascendtune.check.explain.log.line import InnerPrefixes, Line
from ascendtune.check.explain.traceback import cann_reason
from ascendtune.check.explain.traceback.trace import Trace
from ascendtune.check.explain.traceback.traces import Traces

BELOW = 3
"""Lines below an event's line that may belong to it."""


class NotedEvents:
    """Makes events and adds them to `distinct`.

    Args:
        source: name of the log.
        rank: rank of the log, by its name.
        traces: tracebacks of the log.
        inner: learnt prefixes of the log's lines.
    """

    def __init__(self, source: str, rank: int | None, matcher: Matcher, traces: Traces, inner: InnerPrefixes) -> None:
        self.distinct = DistinctEvents()
        self.time: float | None = None
        """Time of the current line."""
        self._source = source
        self._rank = rank
        self._matcher = matcher
        self._traces = traces
        self._inner = inner
        self._processes = lines_of.RanksOfProcesses()

    def note_line(
        self, line: Line, text: str, message: str, number: int, below: list[str], *, warned: bool = False
    ) -> None:
        """Add the events of a line that is not an exception: of its entries, or of an unknown error."""
        reason, first_line, message = (
            self._reason(message, below),
            message.strip(),
            message_lines.with_message(message, below),
        )
        lines = (
            [first_line, message.strip().removeprefix(first_line).lstrip(": ")] if message.strip() != first_line else []
        )
        hits = self._matcher.confirmed_hits(message, below[:BELOW])
        weak = warned or level.is_warning_or_news(text, first_line) or level.is_warning(message)
        quoting = not level.is_error(text, message)
        if not hits and (weak or quoting):
            return
        for hit in with_spare(best(hits), None if weak or quoting else unknown_line(message)):
            quoted = quoting and Traces.bare(hit.entry.test, number) is not None
            doubted = (weak and hit.entry.kind != "notice") or hit.entry.lasting
            event = self._event(line, message, number, hit, text=text)
            event.weak, event.is_quoted, event.lines, event.reason = doubted, quoted, lines, reason
            self.distinct.note(event)

    def note_words(self, line: Line, message: str, number: int, hit: Hit, text: str = "") -> None:
        """Add the event of words of failure that are not an exception.

        Args:
            text: the whole line, if `message` is a part of it.
        """
        self.distinct.note(self._event(line, message, number, hit, text=text))

    def note_exception(self, line: Line, message: str, trace: Trace, below: Sequence[str] = ()) -> None:
        """Add the events of an exception: of its entries, or of an unknown exception."""
        if trace.ignored:
            return
        message = message if trace.type and message and not trace.is_composed else trace.text
        hits = hits_of(self._matcher, message, trace)
        known = [hit for hit in hits if hit.entry.kind != "unknown"]
        unknown = next((hit for hit in hits if hit not in known), unknown_exception(trace))
        for hit in with_spare(best(known), unknown):
            name_caller_and_library(hit, trace)
            number = trace.last_line or trace.first_line
            event = self._event(line, message, number, hit, trace)
            event.weak, event.reason = trace.weak, self._reason(message, below)
            self.distinct.note(event)
        number, words = trace.failure_above
        if words and not known and self.distinct.events[-1].is_vague:
            self.note_words(line, words, number, unknown_line(words))

    def _event(
        self, line: Line, message: str, number: int, hit: Hit, trace: Trace | None = None, text: str = ""
    ) -> Event:
        return Event(
            text=message.strip(),
            source=self._source,
            number=number,
            last=number,
            speaker=line.speaker,
            rank=self._processes.rank_of(text or message, line.rank, trace.rank if trace else None, last=self._rank),
            device=lines_of.device_in(message),
            host=line.host,
            time=self.time,
            hit=hit,
            trace=trace,
            above=self._traces.above(line.speaker, number),
        )

    def _reason(self, message: str, below: Sequence[str]) -> str:
        """Reason that CANN printed below a failed call; empty for other lines."""
        return (
            cann_reason.reason_in([self._inner.without(each) for each in below]) if cann_reason.is_call(message) else ""
        )
