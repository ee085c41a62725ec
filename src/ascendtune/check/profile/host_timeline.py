"""The host's threads: nested operators and ranges, each with its own share of the time."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ascendtune.check.profile.intervals import Interval, uncovered
from ascendtune.check.profile.kinds import (
    KINDS,
    is_linear_node,
    is_view,
    kind_in_module,
    kind_of_module,
    kind_of_operator,
    waits,
)
from ascendtune.check.profile.trace import LAUNCH, OP, RANGE, MemoryEvents, ProfileTrace

_PREFIX = "ascendtune:"
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: |Backward\d*$")
_LOADER = "enumerate(DataLoader)#"
_WAITING_OPERATORS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"})
STRONG = frozenset({"attention", "loss", "optimizer", "clip", "collective", "norm", "rotary", "gradients"})
"""Kinds that an operator passes on to the operators inside it, except to matrix products."""
_GATHERING = "FSDP::"
"""Prefix of the ranges in which torch's FSDP gathers weights and reduces gradients."""
_DEEPEST = 10_000

RECOMPUTATION = "recomputation"
"""Phase of modules that run inside the backward pass."""

KIND_NUMBERS = {kind: number for number, kind in enumerate((*KINDS, "collective", "copy"))}


class Wait(NamedTuple):
    """A call in which the host waits for the device."""

    start: float
    """Time in microseconds."""
    place: str
    phase: str


@dataclass
class ModuleCalls:
    """Counts for a class of modules."""

    calls: int = 0
    operators: int = 0
    """Operators in all calls, without views and without operators inside other operators."""
    recomputed: float = 0.0
    """Microseconds of calls in the backward pass, which activation checkpointing repeats."""


class HostTimeline:
    """The host's side of a trace. `segments` must be called for the main thread before other threads.

    Attributes:
        main: the thread that trains.
        kind: (events,) int8 index into `KIND_NUMBERS` of each operator, -1 for other events; set by `segments`.
        modules: counts by class name; set by `segments`.
    """

    def __init__(self, trace: ProfileTrace) -> None:
        self._trace = trace
        self._by_thread: dict[int, list[int]] = defaultdict(list)
        for event in range(len(trace)):
            if trace.category[event] in (OP, RANGE, LAUNCH):
                self._by_thread[trace.thread[event]].append(event)
        self.kind = array("b", [-1]) * len(trace)
        self.modules: dict[str, ModuleCalls] = defaultdict(ModuleCalls)
        self.waits: list[Wait] = []
        """Driver calls in which the host waited for the device; set by `segments`."""
        self.named_waits: list[Wait] = []
        """Ranges `ascendtune:sync PLACE`: calls that wait for an accelerator, if there is one."""
        self.data_ranges: list[Interval] = []
        """Times in which batches are made; set by `segments`."""
        self.zeroing: list[Interval] = []
        """Times in which gradients are filled with zeros; set by `segments`."""
        self.memory = trace.memory_of_device()
        """Its owners are set by `segments` of all `threads_with_allocations`."""
        self._allocations: dict[int, list[int]] = defaultdict(list)
        if self.memory is not None:
            for position in sorted(range(len(self.memory)), key=self.memory.time.__getitem__):
                self._allocations[self.memory.thread[position]].append(position)
        self._owners: dict[tuple[int, str, str], int] = {}
        self._of_sequence: dict[int, tuple[str, str]] = {}
        self._facts: dict[int, _Facts] = {}
        self._kinds: dict[tuple[int, str, str, bool], tuple[str, str]] = {}
        steps = [event for events in self._by_thread.values() for event in events if self.step_of(event) is not None]
        self.main = self._main_thread(steps)
        self.windows = [
            (start, end)
            for start, end, *_ in uncovered(
                sorted(
                    Interval(trace.start[event], trace.start[event] + trace.duration[event])
                    for event in steps
                    if trace.thread[event] == self.main
                )
            )
        ]
        """Start and end of each profiled step, in microseconds; empty if the trace does not name steps."""

    def step_of(self, event: int) -> int | None:
        """The number in `ProfilerStep#3`, torch's range around a step; None for other events."""
        match = _STEP.fullmatch(self._trace.name_of(event)) if self._trace.category[event] == RANGE else None
        return int(match[1]) if match else None

    def threads(self) -> list[int]:
        """The threads, the main one first."""
        return sorted(self._by_thread, key=lambda thread: thread != self.main)

    def threads_with_allocations(self) -> list[int]:
        return [thread for thread in self.threads() if thread in self._allocations]

    def ranges_of_collectives(self) -> list[Interval]:
        """Ranges recorded by a communication library's own threads (gloo's), sorted."""
        trace = self._trace
        return sorted(
            Interval(trace.start[event], trace.start[event] + trace.duration[event], trace.name_of(event), event)
            for thread, events in self._by_thread.items()
            if thread != self.main
            for event in events
            if trace.category[event] == RANGE and kind_of_operator(trace.name_of(event)) == "collective"
        )

    def _main_thread(self, steps: list[int]) -> int:
        if steps:
            return self._trace.thread[steps[0]]
        most = max(
            self._by_thread.items(),
            key=lambda item: sum(self._trace.duration[event] for event in item[1]),
            default=(0, []),
        )
        return most[0]

    def segments(self, thread: int, windows: list[tuple[float, float]]) -> Iterator[tuple[float, float, OpenEvent]]:
        """Start, end and innermost event of each segment of `thread` during the windows, in order, without gaps.

        If two events overlap without one containing the other, the later one is cut at the end of the earlier one.
        """
        position = 0
        allocations = iter(self._allocations.get(thread, ()))
        allocation = next(allocations, None)
        for start, end, event in self._all_segments(thread):
            while allocation is not None and self.memory is not None and self.memory.time[allocation] < end:
                self.memory.owner[allocation] = self._owner_of(event, self.memory)
                allocation = next(allocations, None)
            while position < len(windows) and windows[position][1] <= start:
                position += 1
            if position == len(windows):
                # Not a break: later events also determine the modules of operators.
                continue
            first, last = windows[position]
            if first <= start and end <= last:
                yield start, end, event
                continue
            for at in range(position, len(windows)):
                first, last = windows[at]
                if first >= end:
                    break
                yield max(first, start), min(last, end), event

    def _all_segments(self, thread: int) -> Iterator[tuple[float, float, OpenEvent]]:
        trace = self._trace
        start, duration = trace.start, trace.duration
        events = sorted(self._by_thread[thread], key=lambda event: (start[event], -duration[event]))
        stack: list[OpenEvent] = []
        outside = OpenEvent(-1, -1, float("inf"), "", "", "", -1)
        cursor = start[events[0]] if events else 0.0
        for event in events:
            begin = start[event]
            while stack and stack[-1].end <= begin:
                done = stack.pop()
                if done.end > cursor:
                    yield cursor, done.end, done
                    cursor = done.end
            parent = stack[-1] if stack else outside
            if begin > cursor:
                yield cursor, begin, parent
                cursor = begin
            if len(stack) < _DEEPEST:
                stack.append(self._opened(event, min(begin + duration[event], parent.end), parent))
        while stack:
            done = stack.pop()
            if done.end > cursor:
                yield cursor, done.end, done
                cursor = done.end

    def _owner_of(self, event: OpenEvent, memory: MemoryEvents) -> int:
        """The index in `memory.owners` for an allocation or free while `event` is the innermost one."""
        number, kind = event.owner
        key = number, kind, event.phase
        owner = self._owners.get(key)
        if owner is None:
            owner = self._owners[key] = len(memory.owners)
            memory.owners.append((self._trace.names[number] if number >= 0 else "", kind, event.phase))
        return owner

    def _opened(self, event: int, end: float, parent: OpenEvent) -> OpenEvent:
        trace = self._trace
        number, category = trace.name[event], trace.category[event]
        if category != OP:
            name = trace.names[number]
            if category == RANGE:
                return self._opened_range(event, name, end, parent)
            place = parent.place
            if waits(name):
                place = number if place < 0 else place
                self.waits.append(Wait(trace.start[event], trace.names[place], parent.phase))
            return OpenEvent(
                event, number, end, parent.module, parent.strong, parent.phase, place, parent.kind, owner=parent.owner
            )
        module, strong, direct = parent.module, parent.strong, parent.direct
        facts = self._facts.get(number) or self._facts_of(number)
        sequence = trace.sequence[event]
        if sequence >= 0:
            if facts.is_backward:
                module, strong = self._of_sequence.get(sequence, (module, strong))
            else:
                # The innermost operator sets it last: the one that autograd records.
                self._of_sequence[sequence] = (module, strong)
        key = number, module, strong, parent.kind == "copy"
        kind_and_strength = self._kinds.get(key)
        if kind_and_strength is None:
            kind_and_strength = self._kinds[key] = _kind_of(facts.own, trace.names[number], module, strong, key[3])
        kind, strong = kind_and_strength
        if direct and not facts.is_view:
            self.modules[direct].operators += 1
            direct = ""
        self.kind[event] = KIND_NUMBERS[kind]
        place = number if facts.is_wait and parent.place < 0 else parent.place
        # Traces of other programs have no names of phases.
        phase = parent.phase or ("backward" if facts.is_backward else "")
        owner = parent.owner if facts.is_view and parent.owner[1] else (number, "loss" if strong == "loss" else kind)
        return OpenEvent(event, number, end, module, strong, phase, place, kind, direct, owner)

    def _facts_of(self, number: int) -> _Facts:
        name = self._trace.names[number]
        facts = self._facts[number] = _Facts(
            kind_of_operator(name), bool(_BACKWARD.search(name)), is_view(name), name in _WAITING_OPERATORS
        )
        return facts

    def _opened_range(self, event: int, name: str, end: float, parent: OpenEvent) -> OpenEvent:
        start, number = self._trace.start[event], self._trace.name[event]
        inner = OpenEvent(
            event, number, end, parent.module, parent.strong, parent.phase, parent.place, owner=parent.owner
        )
        if name.startswith(_PREFIX):
            self._apply_name(inner, name.removeprefix(_PREFIX), parent)
        elif name.startswith("Optimizer.step#"):
            inner.strong, inner.phase = "optimizer", parent.phase or "optimizer"
        elif name.startswith(_GATHERING):
            inner.owner = number, "collective"
        elif name.startswith("Optimizer.zero_grad#"):
            self.zeroing.append(Interval(start, end))
        elif name.startswith(_LOADER):
            inner.phase = "data"
        if inner.phase == "data" != parent.phase:
            self.data_ranges.append(Interval(start, end))
        return inner

    def _apply_name(self, inner: OpenEvent, words: str, parent: OpenEvent) -> None:
        """Apply the name of a range of this project: `phase NAME`, `sync PLACE` or `module CLASS`."""
        what, _, rest = words.partition(" ")
        if what == "phase":
            inner.phase = rest
            inner.strong = "clip" if rest == "optimizer" else parent.strong
        elif what == "sync":
            inner.place = inner.name
            self.named_waits.append(Wait(self._trace.start[inner.event], rest, parent.phase))
        elif what == "module" and (kind := kind_of_module(rest)):
            inner.module, inner.direct = kind, rest
            self.modules[rest].calls += 1
            if parent.phase == "backward":
                self.modules[rest].recomputed += self._trace.duration[inner.event]
                inner.phase = RECOMPUTATION


class _Facts(NamedTuple):
    """Facts derived from the name of an operator."""

    own: str
    is_backward: bool
    is_view: bool
    is_wait: bool


def _kind_of(own: str, name: str, module: str, strong: str, in_copy: bool) -> tuple[str, str]:
    """The kind of an operator, and the kind that it passes on to operators inside it ("": none)."""
    kind = kind_in_module(module, own, name)
    if not strong and is_linear_node(name):
        return "other", "other"
    if strong == "clip" and kind == "copy":
        # A copy between backward pass and optimizer; clipping itself copies nothing.
        return kind, strong
    if strong and kind not in ("matmul", "collective"):
        return strong, strong
    if kind in STRONG:
        return kind, kind
    return "copy" if in_copy and own == "other" else kind, strong


@dataclass(slots=True)
class OpenEvent:
    """An event that has begun, with the values that it passes on to events inside it."""

    event: int
    """Index of the event; -1 for the time outside all events."""
    name: int
    """Index of its name; -1 outside all events."""
    end: float
    """Time in microseconds."""
    module: str
    """Kind of the module around it, see `kinds.kind_of_module`."""
    strong: str
    """Kind of all operators inside it, except matrix products; "" for none."""
    phase: str
    """Phase of the training loop, such as "data" or "forward"; "" outside."""
    place: int
    """Index of the name of the call in which the host waits for the device; -1 if it does not wait."""
    kind: str = ""
    """Kind of an operator, see `kinds.KINDS`; "" for ranges."""
    direct: str = ""
    """Class of the module whose range this is, or that contains only views of it; "" for other events."""
    owner: tuple[int, str] = (-1, "")
    """Name and kind of the innermost operator that is not a view and so owns allocations; -1 and "" outside."""
