"""Reads one log into events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ascendtune.check.explain.event import posted
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.nonfatal import mark_nonfatal
from ascendtune.check.explain.event.noted import BELOW, NotedEvents
from ascendtune.check.explain.event.raised import hits_of, known_exception, look_up_unmatched
from ascendtune.check.explain.event.unmatched import unknown_line, unknown_test
from ascendtune.check.explain.knowledge.line_filter import LineFilter
from ascendtune.check.explain.knowledge.matcher import Matcher, best
from ascendtune.check.explain.log import level, message_lines, torchrun_summary
from ascendtune.check.explain.log import line as lines_of
from ascendtune.check.explain.log.frame import frame_of, prefix_of_frame
from ascendtune.check.explain.log.line import InnerPrefixes, Line
from ascendtune.check.explain.log.line_times import LineTimes
from ascendtune.check.explain.log.long_line import failure_at_end, without_endless_words
from ascendtune.check.explain.log.message_lines import LONGEST_TEXT, text_of
from ascendtune.check.explain.log.neighbours import Neighbours
from ascendtune.check.explain.log.report_of_tests import failed_test
from ascendtune.check.explain.log.rotation import Parts
from ascendtune.check.explain.log.source import lines_before
from ascendtune.check.explain.traceback import cann_reason, escaped
from ascendtune.check.explain.traceback.trace import HEADER, LINKS, Trace
from ascendtune.check.explain.traceback.traces import REPORTED, Traces

_HEAD = 50
"""Lines at the beginning that are all read: the log may begin in the middle of a traceback."""
_LAST_WORDS = 10
"""Lines at the end of a block that are searched for the last one that is not blank."""
_BELOW_BLOCK = 24
"""Lines below an exception that are searched for MindSpore's line of the model and CANN's reason of a failed call."""
_KEPT = 1 << 17
_TAB = 4


class Scan:
    """One log. `events` are in the order of the log.

    Args:
        start: offset in bytes; line numbers count from the file's beginning.
        earlier: files with the earlier parts, the oldest first; line numbers count their lines, too.
    """

    def __init__(self, name: str, matcher: Matcher, start: int = 0, earlier: Sequence[str] = ()) -> None:
        self.name = name
        self.parts = Parts((*earlier, name), start)
        self.lines = self._skipped = lines_before(name, start)
        self.bytes = 0
        self.launcher: torchrun_summary.RootCause | None = None
        self.speaks_of_ascend = False
        """Whether a line that was read names Ascend."""
        self.start = start
        self._matcher = matcher
        self._line_filter = LineFilter(matcher)
        self.rank = lines_of.rank_of_file(name)
        """Rank of the log, by its name."""
        self._head = self._tail = b""
        self._traces = Traces()
        self._inner = InnerPrefixes()
        self._noted = NotedEvents(name, self.rank, matcher, self._traces, self._inner)
        self._times = LineTimes()
        self._last = 0, b""
        """Number and text of the last line that is not blank."""
        self._passed = 0
        """Number of the last line that was read along with an earlier one."""

    @property
    def events(self) -> list[Event]:
        return self._noted.distinct.events

    @property
    def lines_read(self) -> int:
        return self.lines - self._skipped

    @property
    def is_empty(self) -> bool:
        """Whether only white space was read."""
        return not self._last[0]

    @property
    def last_words(self) -> str:
        """Last line that is not blank."""
        return text_of(self._last[1]).strip()

    @property
    def head(self) -> str:
        """First lines, at most `_KEPT` bytes."""
        return self._head.decode(errors="replace")

    @property
    def tail(self) -> str:
        """Last lines, at most `_KEPT` bytes."""
        return self._tail.decode(errors="replace")

    @property
    def last_lines(self) -> list[tuple[int, str]]:
        """Lines of `tail`, each with its number; the first may be cut off."""
        lines = self.tail.removesuffix("\n").split("\n")
        return list(enumerate(lines, self.lines - len(lines) + 1))

    def run(self) -> Scan:
        """Read the log to its end.

        Raises:
            InputError: the file cannot be read.
        """
        for block in self.parts.blocks():
            self.bytes += len(block)
            self._head = self._head or block[:_KEPT]
            self._tail = block[-_KEPT:] if len(block) >= _KEPT else (self._tail + block)[-_KEPT:]
            self._read_block(block)
            self.parts.lines = self.lines
        self._head, self._tail = map(without_endless_words, (self._head, self._tail))
        self._end_traces()
        self._note_last_words()
        look_up_unmatched(self.events)
        self._noted.distinct.mark_survived(self.lines)
        mark_nonfatal(self.events, self.last_lines, of_one_process=self.rank is not None)
        if self.events and all(event.survived or event.weak for event in self.events):
            self._note_last_line()
        for event in self.events:
            event.place = self.parts.place_of(event.number)
        return self

    def _end_traces(self) -> None:
        for speaker, trace in self._traces.rest():
            self._note_cut_off(Line(speaker, "", trace.rank), trace)

    def _read_block(self, block: bytes) -> None:
        lines = block.split(b"\n")
        if not lines[-1]:
            del lines[-1]
        self._times.begin_block()
        head = min(max(0, _HEAD - self.lines), len(lines))
        chosen = self._line_filter.worth_reading(block, lines)
        chosen = [*range(head), *(index for index in chosen if index >= head)]
        for index in self._with_tracebacks(chosen, len(lines)):
            self._read_line(lines, index)
        for index in range(max(0, len(lines) - _LAST_WORDS), len(lines)):
            if lines[index].strip():
                self._last = self.lines + index + 1, lines[index]
        self.lines += len(lines)

    def _with_tracebacks(self, chosen: list[int], count: int) -> Iterator[int]:
        """Indices of the chosen lines; of all lines while a traceback is open."""
        position, index = 0, 0
        while index < count:
            if not self._traces.are_open:
                while position < len(chosen) and chosen[position] < index:
                    position += 1
                if position == len(chosen):
                    return
                index = chosen[position]
            yield index
            index += 1

    def _read_line(self, lines: list[bytes], index: int) -> None:
        text = text_of(lines[index])
        text = text.expandtabs(_TAB) if text[:1] == "\t" else text
        number = self.lines + index + 1
        if number <= self._passed or self._read_in_one_line(lines, index):
            return
        if (end := failure_at_end(lines[index])) and not self._traces.are_open and not Traces.bare(text, number):
            text = end
        if not self.speaks_of_ascend and lines_of.speaks_of_ascend(text):
            self.speaks_of_ascend, self._line_filter.always = True, frozenset()
        line = lines_of.read(text)
        if number <= _HEAD:
            self._inner.learn(prefix_of_frame(line.message))
        message = self._inner.without(line.message)
        is_frame = number <= _HEAD and frame_of(message) is not None
        if not self._traces.are_open:
            message = self._with_broken_off(message, lines, index)
            boxed = message_lines.boxed_error(lines, index)
            message = boxed or message
            if not is_frame and not boxed and not level.may_matter(text) and not self._matcher.hits(message):
                return
        if is_frame:
            self._traces.begin_headless(line.speaker, number)
        if HEADER in message:
            self._begin_trace(line, text, message, lines, index)
            return
        if REPORTED in message and index and self._begin_report(line, message, lines[index - 1], number):
            return
        if torchrun_summary.begins(message):
            self._read_launcher(line, lines, index)
            return
        if any(link in message for link in LINKS):
            self._traces.link(line.speaker)
            return
        inside, trace = self._traces.feed(line.speaker, message, number)
        if inside and trace is None:
            return
        self._noted.time = self._times.time_of(lines, index)
        neighbours, above = Neighbours(lines, index, line), text_of(lines[index - 1]) if index else ""
        if (trace := trace or Traces.bare(message, number)) is not None:
            below = neighbours.below(_BELOW_BLOCK)
            trace.read_below(below, above)
            trace.read_above(neighbours.code_above)
            self._noted.note_exception(line, message, trace, below)
        elif not level.is_aside(message) and (not level.goes_on_without(above) or level.is_error(text, message)):
            warned = message_lines.begins_warning(above) and not level.is_error(text, message)
            count = _BELOW_BLOCK if cann_reason.is_call(message) or message_lines.goes_far(message) else BELOW
            self._noted.note_line(line, text, message, number, neighbours.below(count), warned=warned)

    def _read_in_one_line(self, lines: list[bytes], index: int) -> bool:
        """Read a traceback within one line; False if there is none, or it contains no failure."""
        if not (traceback := escaped.traceback_in(lines[index])):
            return False
        inner, text = Scan(self.name, self._matcher), text_of(lines[index])
        inner._read_block("\n".join(traceback).encode())
        inner._end_traces()
        line, number, weak = lines_of.read(text), self.lines + index + 1, level.is_warning(text)
        time = self._times.time_of(lines, index)
        for event in inner.events:
            event.number, event.last, event.time = number, number, time
            event.speaker, event.rank, event.host, event.weak = line.speaker, line.rank, line.host, weak
            if event.trace is not None:
                event.trace.first_line = event.trace.last_line = event.trace.end = number
            self._noted.distinct.add(event)
        return bool(inner.events)

    def _with_broken_off(self, message: str, lines: list[bytes], index: int) -> str:
        """Join `message` with the next line if an entry matches only both together: the line was broken there."""
        if index + 1 == len(lines) or not message_lines.may_be_broken(message) or self._matcher.known_length(message):
            return message
        rest = self._inner.without(lines_of.read(text_of(lines[index + 1])).message)
        if not message_lines.may_go_on(message, rest) or level.is_error(rest, rest):
            return message
        whole = self._matcher.known_together(message, rest)
        if whole is None:
            return message
        self._passed = self.lines + index + 2
        return whole

    def _begin_trace(self, line: Line, text: str, message: str, lines: list[bytes], index: int) -> None:
        number, neighbours = self.lines + index + 1, Neighbours(lines, index, line)
        above, (up, words) = neighbours.above, neighbours.failure_above
        heading = message[: message.index(HEADER)]
        named_type = Traces.named_in(heading)
        if (named := Traces.bare(heading, number)) is not None and named.message:
            # Printed to another stream than the traceback, without a line end.
            self._noted.note_exception(line, heading, named)
        else:
            self._inner.learn(heading)
            has_words = heading.strip() and not named_type
            if has_words and any(hit.entry.kind == "cause" for hit in self._matcher.hits(heading)):
                # "Exception in worker: MESSAGE, Traceback …" names the exception before its frames.
                self._noted.note_line(line, text, heading, number, [])
        self._noted.distinct.mark_heading(line.speaker, number)
        if (unfinished := self._traces.settle(line.speaker)) is not None:
            self._noted.note_exception(line, unfinished.text, unfinished)
        trace = Trace(number, named=named_type, weak=level.is_warning(text), rank=line.rank)
        trace.failure_above = number - up, words
        trace.ignored = level.is_ignored_below(above)
        trace.is_logged = level.is_error(text, message) or level.announces_caught(above, lines_of.read(above).message)
        self._traces.begin(line.speaker, trace)

    def _begin_report(self, line: Line, message: str, above: bytes, number: int) -> bool:
        """Begin the traceback of a report that names the exception above its frames; False for other lines."""
        return self._traces.begin_reported(line.speaker, message, lines_of.read(text_of(above)).message, number)

    def _note_cut_off(self, line: Line, trace: Trace) -> None:
        """Note a traceback that is still open at the end of the log.

        A traceback with its exception is complete. One without an exception counts, but without a heading only if the
        log ends within it, or a person calls its frames an error.
        """
        if trace.type:
            self._noted.note_exception(line, trace.text, trace)
            return
        announced = self._noted.distinct.last_before(line.speaker, trace.first_line)
        if announced is not None:
            # The line above it names the exception: the frames select among its entries.
            hits = (hit for hit in hits_of(self._matcher, announced.text, trace) if not hit.entry.is_conditional)
            announced.hit = announced.hit if announced.entry.is_conditional else next(hits, announced.hit)
            return
        ends_there = self._last[0] <= trace.end
        is_cut_off = ends_there or posted.are_frames_of_failure(self.last_lines, trace)
        if not trace.headless or (is_cut_off and (len(trace.frames) > 1 or trace.is_of_notebook)):
            if ends_there:
                trace.read_code()
            trace.type = trace.type or trace.named
            self._noted.note_exception(line, "", trace)

    def _read_launcher(self, line: Line, lines: list[bytes], index: int) -> None:
        """Note the launcher's summary as one event, without its lines about ranks that ended later."""
        self._traces.close(line.speaker)
        rows = lines[index : index + torchrun_summary.LONGEST]
        summary = torchrun_summary.summary([each[:300].decode(errors="replace") for each in rows])
        self._noted.note_line(line, line.message, line.message, self.lines + index + 1, [])
        if summary is None:
            return
        self.launcher = summary.root_cause
        self._passed = self.lines + index + 1 + summary.last
        message = summary.text.strip()
        for hit in best(self._matcher.hits(message) or self._matcher.hits(torchrun_summary.HEADER)):
            self._noted.note_words(line, message, self.lines + index + 1 + summary.index, hit)

    def _note_last_words(self) -> None:
        """Note words of failure at the end of a log without errors: it is not a log of success."""
        number, last = self._last
        for event in self.events:
            is_notice, is_conditional = event.entry.kind == "notice", event.entry.is_conditional
            # A conditional event may not count in the end.
            if event.last == number if is_notice else not (event.weak or is_conditional):
                return
        line = lines_of.read(text_of(last))
        first, lines = self.last_lines[0][0], [each[:LONGEST_TEXT] for _, each in self.last_lines]
        messages = [lines_of.read(each).message for each in lines]
        index, words = failed_test(messages, _LAST_WORDS)
        if words:
            self._noted.note_words(line, words, first + index, unknown_test(words))
        elif (raised := Traces.raised_in_code(line.message, number)) is not None:
            self._noted.note_exception(line, raised.text, raised)
        elif (named := known_exception(self._matcher, line.message, number)) is not None:
            self._noted.note_exception(line, line.message, named)
        elif (titled := posted.exception_in_title(lines, first)) is not None:
            self._noted.note_exception(Line("", titled.text), titled.text, titled)
        elif not self._note_last_line():
            index, words = posted.refusal(lines, messages, _LAST_WORDS)
            if words:
                self._noted.note_words(lines_of.read(lines[index]), words, first + index, unknown_line(words))

    def _note_last_line(self) -> bool:
        """Note the last line if it has words of failure: the events before it may not have ended the job."""
        number, last = self._last
        line = lines_of.read(text := text_of(last))
        is_new = level.are_last_words(text, line.message) and all(event.last != number for event in self.events)
        if is_new:
            self._noted.note_words(line, line.message, number, unknown_line(line.message), text)
        return is_new


def texts_of(scans: Iterable[Scan]) -> list[str]:
    """First and last lines of each log."""
    return [text for scan in scans for text in (scan.head, scan.tail)]
