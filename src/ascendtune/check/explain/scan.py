"""Reads one log and keeps what matters. Most lines differ from earlier ones in digits only, and are passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import compress, pairwise

from ascendtune.check.explain import launcher
from ascendtune.check.explain import line as lines_of
from ascendtune.check.explain.event import Event
from ascendtune.check.explain.matcher import Hit, Matcher
from ascendtune.check.explain.source import blocks
from ascendtune.check.explain.trace import HEADER, LINKS, Trace, Traces

_DIGITS = b"0123456789abcdef"
"""Decimal and hexadecimal ones: counters, sizes, addresses."""
_SHAPES_KEPT = 50_000
_REPETITIVE = 0.2
"""Share of lines known by their shape below which shapes are not worth their price,"""
_BLOCKS_WITHOUT_SHAPES = 16
"""for so many blocks."""
_REPEATS_READ = 300
"""Lines of one shape (the same but for digits) that are read closely; later ones tell nothing about a first cause."""
_EVENTS_KEPT = 2000
_LONGEST_TEXT = 2000
_SURVIVED_AFTER = 5000
_HITS_KEPT = 3
_LAUNCHER_LINES = 10
_LOOK_BACK = 200
"""Lines in which the time of a line without one is looked for."""
_LEVEL = re.compile(r"(?:^|[\s\[|(])(?:ERROR|CRITICAL|FATAL)(?=[\s\]|:)])|\[(?:error|fatal)\]|\bNCCL WARN\b|^E20\d{6} ")
_MAY_MATTER = re.compile(
    r"Error|Exception|Traceback|Root Cause|exception|error\]|error: |ERROR|CRITICAL|FATAL|WARN|^E20"
)
"""A line without any of these matters only if something is known about it; saves most of the work on long logs."""
_WARNING = re.compile(
    r"^warning: |\w*Warning:|(?<!NCCL )\bWARN(?:ING)?\b|^\W*\[?W\d{4} |^\[W |\bwarnings\.warn\(", re.ASCII
)
_INFO = re.compile(r"^\W{0,3}\[?I\d{4} |\[INFO\]|\bNCCL INFO\b|(?:^|[\s\[|])(?:INFO|DEBUG)(?=[\s\]|:])")
_ADVICE = re.compile(r"\s*(?:Possible (?:Cause|Reason)|Solution|Suggestion)\b", re.IGNORECASE)
_ANY_DIGIT = re.compile(r"\d")
_INNER_PREFIXES = 8
_NATIVE_FRAME = re.compile(r"\s*frame #\d+")


class Scan:
    """One log. `events` are in the order of the log: the first of its kind for each speaker."""

    def __init__(self, name: str, matcher: Matcher) -> None:
        self.name = name
        self.lines = 0
        self.bytes = 0
        self.events: list[Event] = []
        self.launcher: launcher.RootCause | None = None
        self._matcher = matcher
        self._rank = lines_of.rank_of_file(name)
        self._traces = Traces()
        self._first: dict[tuple[str, str], Event] = {}
        self._inner: list[str] = []
        self._boring: set[bytes] = set()
        self._without_shapes = 0
        self._read: dict[bytes, int] = {}
        self._time: float | None = None

    def run(self) -> Scan:
        """Read to the end.

        Raises:
            InputError: the file cannot be read.
        """
        for block in blocks(self.name):
            self.bytes += len(block)
            self._read_block(block)
        for speaker, trace in self._traces.rest():
            self._note(speaker, speaker, "a traceback that is cut off", trace.first_line, None, trace)
        self._mark_survived()
        return self

    def _read_block(self, block: bytes) -> None:
        lines = block.split(b"\n")
        if not lines[-1]:
            del lines[-1]
        for index in self._with_tracebacks(self._worth_reading(block, lines), len(lines)):
            self._read_line(lines, index)
        self.lines += len(lines)

    def _worth_reading(self, block: bytes, lines: list[bytes]) -> list[int]:
        """The lines to look at: those with words of trouble, and of each shape only so many."""
        if self._without_shapes:
            self._without_shapes -= 1
            worth = compress(range(len(lines)), self._matcher.worth_a_look(block))
        else:
            worth = compress(*self._of_new_shapes(block, lines))
        chosen = []
        for index in worth:
            shape = lines[index].translate(None, _DIGITS)
            read = self._read.get(shape, 0)
            self._read[shape] = read + 1
            if read < _REPEATS_READ:
                chosen.append(index)
        if len(self._read) > _SHAPES_KEPT:
            self._read.clear()
        return chosen

    def _of_new_shapes(self, block: bytes, lines: list[bytes]) -> tuple[list[int], list[bool]]:
        """(lines that no earlier one of no worth is like, whether each has words of trouble)."""
        shapes = block.translate(None, _DIGITS).split(b"\n")[: len(lines)]
        boring = self._boring
        new = [index for index, shape in enumerate(shapes) if shape not in boring]
        worth = self._matcher.worth_a_look(b"\n".join([lines[index] for index in new]))
        boring.update([shapes[index] for index, look in zip(new, worth, strict=False) if not look])
        if len(boring) > _SHAPES_KEPT:
            boring.clear()
        if len(lines) - len(new) < _REPETITIVE * len(lines):
            self._without_shapes = _BLOCKS_WITHOUT_SHAPES
        return new, worth

    def _with_tracebacks(self, chosen: list[int], count: int) -> Iterator[int]:
        """The chosen lines; while a traceback is open, all lines."""
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
        text = lines[index][:_LONGEST_TEXT].decode(errors="replace")
        if not self._traces.are_open and not _MAY_MATTER.search(text) and not self._matcher.hits(text):
            return
        prefix, said = lines_of.split_prefix(text)
        number = self.lines + index + 1
        said = self._without_inner_prefix(said)
        if HEADER in said:
            self._note_inner_prefix(said[: said.index(HEADER)])
            before = lines[index - 1] if index else b""
            self._traces.begin(prefix, number, b"Exception ignored" in before)
            return
        if launcher.HEADER in said:
            self._read_launcher(lines, index)
        if any(link in said for link in LINKS):
            self._traces.link(prefix)
            return
        inside, trace = self._traces.feed(prefix, said, number)
        if inside and trace is None:
            return
        if _ADVICE.match(said) or _NATIVE_FRAME.match(said):
            return
        hits = self._matcher.hits(said)
        trace = trace or Traces.bare(said, number)
        hits = [hit for hit in hits if not hit.entry.frame or (trace and trace.passed(hit.entry.frame))]
        if trace is None and not hits and (not _LEVEL.search(text) or said[:1].isspace() or not said):
            return
        if trace is None and (_INFO.search(text) or _WARNING.search(text)):
            hits = [hit for hit in hits if hit.entry.kind == "notice"]
            if not hits:
                return
        if trace is not None and trace.ignored:
            return
        self._time = self._time_of(lines, index)
        for hit in hits[:_HITS_KEPT] if hits else (None,):
            self._note(prefix, text, said, number, hit, trace)

    def _note_inner_prefix(self, prefix: str) -> None:
        """Loggers and schedulers put something of their own before each line; a traceback shows what it is."""
        shape = _ANY_DIGIT.sub("0", prefix)
        if prefix and shape not in self._inner and len(self._inner) < _INNER_PREFIXES:
            self._inner.append(shape)

    def _without_inner_prefix(self, said: str) -> str:
        for shape in self._inner:
            if _ANY_DIGIT.sub("0", said[: len(shape)]) == shape:
                return said[len(shape) :]
        return said

    def _time_of(self, lines: list[bytes], index: int) -> float | None:
        for line in reversed(lines[max(0, index - _LOOK_BACK) : index + 1]):
            if b":" in line and (time := lines_of.time_of(line[:200].decode(errors="replace"))) is not None:
                return time
        return self._time

    def _note(self, prefix: str, text: str, said: str, number: int, hit: Hit | None, trace: Trace | None) -> None:
        known = hit.entry.id if hit else trace.type if trace else "?" + re.sub(r"\d+", "", said)[:60]
        key = (prefix, known)
        first = self._first.get(key)
        if first is not None and number - first.last <= _SURVIVED_AFTER:
            first.count += 1
            first.last = number
            return
        if len(self.events) >= _EVENTS_KEPT:
            return
        event = Event(
            text=said.strip(),
            source=self.name,
            number=number,
            last=number,
            speaker=prefix.strip(),
            rank=self._rank_of(prefix, text),
            device=lines_of.device_in(said),
            host=lines_of.host_of(prefix),
            time=self._time,
            hit=hit,
            trace=trace,
        )
        self._first[key] = event
        self.events.append(event)

    def _rank_of(self, prefix: str, text: str) -> int | None:
        for rank in (lines_of.rank_of(prefix), lines_of.rank_in(text), self._rank):
            if rank is not None:
                return rank
        return None

    def _mark_survived(self) -> None:
        """An error after which the log went on for thousands of lines did not end the job."""
        points = sorted({point for event in self.events for point in (event.number, event.last)})
        fatal_from = 0
        for point, following in pairwise([*points, self.lines]):
            if following - point > _SURVIVED_AFTER:
                fatal_from = point + 1
        for event in self.events:
            event.survived = event.last < fatal_from

    def _read_launcher(self, lines: list[bytes], index: int) -> None:
        block = [line[:300].decode(errors="replace") for line in lines[index : index + _LAUNCHER_LINES]]
        if found := launcher.root_cause(block):
            self.launcher = found
