"""What the threads of the host did: operators and ranges lie inside each other, each with its own share of the time."""

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

_OURS = "ascendtune:"
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: |Backward\d*$")
_LOADER = "enumerate(DataLoader)#"
_WAITING_OPERATORS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"})
STRONG = frozenset({"attention", "loss", "optimizer", "clip", "collective", "norm", "rotary", "gradients"})
"""Kinds that an operator passes on to those inside it; products of matrices stay what they are."""
_GATHERING = "FSDP::"
"""Ranges of torch's FSDP in which it gathers weights and reduces gradients."""
_DEEPEST = 10_000

RECOMPUTATION = "recomputation"
"""The phase of modules that run inside the backward pass."""

KIND_NUMBERS = {kind: number for number, kind in enumerate((*KINDS, "collective", "copy"))}


class Wait(NamedTuple):
    """A call in which the host waits for the device."""

    start: float
    """Microseconds."""
    place: str
    phase: str


@dataclass
class ModuleCalls:
    """What was counted for a class of modules."""

    calls: int = 0
    operators: int = 0
    """Inside all calls, without views and without those inside other operators."""
    recomputed: float = 0.0
    """Microseconds of calls in the backward pass: activation checkpointing."""


class HostTimeline:
    """The host's side of a trace. `segments` of the main thread must be read before those of others.

    Attributes:
        main: the thread that trains.
        kind: (events,) int8 index into `KIND_NUMBERS` of each operator, -1 for others; known after `segments`.
        modules: by class name, known after `segments`.
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
        """Calls of a driver in which the host waited for the device; known after `segments`."""
        self.named_waits: list[Wait] = []
        """Ranges `ascendtune:sync PLACE`: calls that wait for a device, where there is one."""
        self.data_ranges: list[Interval] = []
        """In which batches are made; known after `segments`."""
        self.zeroing: list[Interval] = []
        """In which gradients are filled with zeros; known after `segments`."""
        self.memory = trace.memory_of_device()
        """Its owners are known after `segments` of all `threads_with_allocations`."""
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
        """Start and end of each profiled step, in microseconds; empty where the trace names no steps."""

    def step_of(self, event: int) -> int | None:
        """The number in `ProfilerStep#3`, the range that torch puts around a step."""
        match = _STEP.fullmatch(self._trace.name_of(event)) if self._trace.category[event] == RANGE else None
        return int(match[1]) if match else None

    def threads(self) -> list[int]:
        """The threads, the main one first."""
        return sorted(self._by_thread, key=lambda thread: thread != self.main)

    def threads_with_allocations(self) -> list[int]:
        return [thread for thread in self.threads() if thread in self._allocations]

    def ranges_of_collectives(self) -> list[Interval]:
        """Ranges that a communication library's own threads recorded (gloo's), sorted."""
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
        """What is innermost in `thread` during the windows: start, end, and the event; in order, without gaps.

        Of events that overlap without one containing the other, the later one is cut at the end of the earlier one.
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
                # Goes on: events behind the windows still tell which module an operator belongs to.
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
            above = stack[-1] if stack else outside
            if begin > cursor:
                yield cursor, begin, above
                cursor = begin
            if len(stack) < _DEEPEST:
                stack.append(self._opened(event, min(begin + duration[event], above.end), above))
        while stack:
            done = stack.pop()
            if done.end > cursor:
                yield cursor, done.end, done
                cursor = done.end

    def _owner_of(self, event: OpenEvent, memory: MemoryEvents) -> int:
        """The index in `memory.owners` of what allocates or frees while `event` is the innermost one."""
        number, kind = event.owner
        key = number, kind, event.phase
        found = self._owners.get(key)
        if found is None:
            found = self._owners[key] = len(memory.owners)
            memory.owners.append((self._trace.names[number] if number >= 0 else "", kind, event.phase))
        return found

    def _opened(self, event: int, end: float, above: OpenEvent) -> OpenEvent:
        trace = self._trace
        number, category = trace.name[event], trace.category[event]
        if category != OP:
            name = trace.names[number]
            if category == RANGE:
                return self._opened_range(event, name, end, above)
            place = above.place
            if waits(name):
                place = number if place < 0 else place
                self.waits.append(Wait(trace.start[event], trace.names[place], above.phase))
            return OpenEvent(
                event, number, end, above.module, above.strong, above.phase, place, above.kind, owner=above.owner
            )
        module, strong, direct = above.module, above.strong, above.direct
        facts = self._facts.get(number) or self._facts_of(number)
        sequence = trace.sequence[event]
        if sequence >= 0:
            if facts.is_backward:
                module, strong = self._of_sequence.get(sequence, (module, strong))
            else:
                # What is innermost has it last: the operator that autograd knows.
                self._of_sequence[sequence] = (module, strong)
        key = number, module, strong, above.kind == "copy"
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = _kind_of(facts.own, trace.names[number], module, strong, key[3])
        kind, strong = found
        if direct and not facts.is_view:
            self.modules[direct].operators += 1
            direct = ""
        self.kind[event] = KIND_NUMBERS[kind]
        place = number if facts.is_wait and above.place < 0 else above.place
        # Traces of other programs do not name their phases.
        phase = above.phase or ("backward" if facts.is_backward else "")
        owner = above.owner if facts.is_view and above.owner[1] else (number, "loss" if strong == "loss" else kind)
        return OpenEvent(event, number, end, module, strong, phase, place, kind, direct, owner)

    def _facts_of(self, number: int) -> _Facts:
        name = self._trace.names[number]
        found = self._facts[number] = _Facts(
            kind_of_operator(name), bool(_BACKWARD.search(name)), is_view(name), name in _WAITING_OPERATORS
        )
        return found

    def _opened_range(self, event: int, name: str, end: float, above: OpenEvent) -> OpenEvent:
        start, number = self._trace.start[event], self._trace.name[event]
        inner = OpenEvent(event, number, end, above.module, above.strong, above.phase, above.place, owner=above.owner)
        if name.startswith(_OURS):
            self._enter_ours(inner, name.removeprefix(_OURS), above)
        elif name.startswith("Optimizer.step#"):
            inner.strong, inner.phase = "optimizer", above.phase or "optimizer"
        elif name.startswith(_GATHERING):
            inner.owner = number, "collective"
        elif name.startswith("Optimizer.zero_grad#"):
            self.zeroing.append(Interval(start, end))
        elif name.startswith(_LOADER):
            inner.phase = "data"
        if inner.phase == "data" != above.phase:
            self.data_ranges.append(Interval(start, end))
        return inner

    def _enter_ours(self, inner: OpenEvent, words: str, above: OpenEvent) -> None:
        """Note what the name of a range of this project says: `phase NAME`, `sync PLACE` or `module CLASS`."""
        what, _, rest = words.partition(" ")
        if what == "phase":
            inner.phase = rest
            inner.strong = "clip" if rest == "optimizer" else above.strong
        elif what == "sync":
            inner.place = inner.name
            self.named_waits.append(Wait(self._trace.start[inner.event], rest, above.phase))
        elif what == "module" and (kind := kind_of_module(rest)):
            inner.module, inner.direct = kind, rest
            self.modules[rest].calls += 1
            if above.phase == "backward":
                self.modules[rest].recomputed += self._trace.duration[inner.event]
                inner.phase = RECOMPUTATION


class _Facts(NamedTuple):
    """What the name of an operator tells."""

    own: str
    is_backward: bool
    is_view: bool
    is_wait: bool


def _kind_of(own: str, name: str, module: str, strong: str, in_copy: bool) -> tuple[str, str]:
    """The kind of an operator, and the kind that it passes on to those inside it ("": none)."""
    kind = kind_in_module(module, own, name)
    if not strong and is_linear_node(name):
        return "other", "other"
    if strong == "clip" and kind == "copy":
        # Between backward pass and optimizer; clipping itself copies nothing.
        return kind, strong
    if strong and kind not in ("matmul", "collective"):
        return strong, strong
    if kind in STRONG:
        return kind, kind
    return "copy" if in_copy and own == "other" else kind, strong


@dataclass(slots=True)
class OpenEvent:
    """An event that has begun, and what it passes on to those inside it."""

    event: int
    """-1 for the time outside all events."""
    name: int
    """Index of its name; -1 likewise."""
    end: float
    """Microseconds."""
    module: str
    """As `kinds.kind_of_module` says of the module around it."""
    strong: str
    """The kind that everything inside it has, but for matrix products."""
    phase: str
    """Of the training loop, such as "data" or "forward"; "" outside."""
    place: int
    """Index of the name of the call in which the host waits for the device; -1 where it does not."""
    kind: str = ""
    """Of an operator, see `kinds.KINDS`; "" for ranges."""
    direct: str = ""
    """The class of modules whose range this is, or that contains only views of it; "" for other events."""
    owner: tuple[int, str] = (-1, "")
    """Name and kind of the innermost operator that is not a view: what allocates here; -1 and "" outside."""
