"""Divides the time of a step so that every moment counts once: the parts add up to the step."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field

from ascendtune.check.profile.host_timeline import KIND_NUMBERS, HostTimeline, ModuleCalls, OpenEvent
from ascendtune.check.profile.intervals import Interval, IntervalIndex, is_inside, merged, uncovered, union
from ascendtune.check.profile.kinds import kind_of_collective, kind_of_operator
from ascendtune.check.profile.pauses import LEAST_MICROSECONDS, Pauses, PauseTimes, label_of
from ascendtune.check.profile.trace import COPY, KERNEL, LAUNCH, OP, ProfileTrace

ASIDE = ("evaluation", "checkpoint", "profile", "garbage collection")
"""Work in the profiled steps that is not training: phases of the loop, and garbage collection."""
_CAUSES = ("collective", "aside", "sync", "data", "launch")
"""Reasons for which the main thread computes nothing."""
_KIND_NAMES = tuple(KIND_NUMBERS)
_MICRO = 1e-6
_SAME_MOMENT = 1e-3
"""Microseconds: the precision of times in a trace."""


@dataclass
class Operator:
    """An operator or kernel: calls and seconds in all profiled steps together."""

    calls: int = 0
    seconds: float = 0.0


@dataclass
class Split:
    """Seconds in all profiled steps together; the parts without `hidden` add up to `total`."""

    step_seconds: list[float]
    """Seconds of each step."""
    on_device: bool
    """Whether kernels of a device were timed; otherwise operators on the host."""
    compute: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Computing, by kind, see `kinds.KINDS`."""
    communication: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Exposed communication, during which nothing is computed. By collective."""
    exposed_seconds: list[float] = field(default_factory=list)
    """Exposed communication of each step."""
    hidden: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Communication that overlaps with computing. By collective."""
    collectives: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of each call. By collective."""
    copies: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Copies, by name and phase."""
    data: float = 0.0
    data_seconds: list[float] = field(default_factory=list)
    """Time in which the host made the batches of each step, whether the device waited for them or not."""
    sync: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The device waits because the host waited for it. By place of the call."""
    launch: float = 0.0
    """The device waits for the host to launch the next work."""
    gaps: float = 0.0
    """The device had its next work but did not begin it."""
    aside: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By phase, see `ASIDE`."""
    sync_calls: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """(place, phase) -> number of calls in which the host waited for the device."""
    operators: dict[tuple[str, str], Operator] = field(default_factory=lambda: defaultdict(Operator))
    """By name and kind: an elementwise product, for example, may be part of a norm or of an activation."""
    modules: dict[str, ModuleCalls] = field(default_factory=dict)
    windows: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each step in the trace, in microseconds; empty without a trace."""
    zeroed: float = 0.0
    """Time in which gradients are filled with zeros: part of `compute`. Of operators on the host only."""
    pauses: PauseTimes = field(init=False)
    """Long spans of `launch`, by the operators or kernels around them."""

    def __post_init__(self) -> None:
        self.pauses = PauseTimes(self.steps)

    @property
    def steps(self) -> int:
        return len(self.step_seconds)

    @property
    def total(self) -> float:
        """Seconds of all steps."""
        return sum(self.step_seconds)

    def idle(self) -> float:
        return self.data + sum(self.sync.values()) + self.launch + self.gaps

    def parts(self) -> float:
        """Sum of all parts in seconds."""
        groups = (self.compute, self.communication, self.copies, self.aside)
        return sum(sum(group.values()) for group in groups) + self.idle()

    def note(self, name: str, kind: str, calls: int, seconds: float) -> None:
        """Add calls and seconds to the table of operators."""
        entry = self.operators[name, kind]
        entry.calls += calls
        entry.seconds += seconds


def split_of(trace: ProfileTrace) -> Split:
    """Divide the time of the profiled steps of one rank."""
    host = HostTimeline(trace)
    windows = host.windows or [_whole(trace)]
    split = Split([(end - start) * _MICRO for start, end in windows], trace.has_device(), windows=windows)
    if split.on_device:
        _split_device(split, trace, host, windows)
    else:
        _split_host(split, trace, host, windows)
        for thread in host.threads_with_allocations():
            if thread != host.main:
                # Iterated for the owners of its allocations.
                deque(host.segments(thread, windows), maxlen=0)
    split.modules = dict(host.modules)
    data = IntervalIndex(host.data_ranges)
    split.data_seconds = [sum(each.seconds for each in data.within(*window)) for window in windows]
    return split


def _whole(trace: ProfileTrace) -> tuple[float, float]:
    timed = [event for event in range(len(trace)) if trace.category[event] != LAUNCH]
    return (
        min(trace.start[event] for event in timed),
        max(trace.start[event] + trace.duration[event] for event in timed),
    )


def _split_host(split: Split, trace: ProfileTrace, host: HostTimeline, windows: list[tuple[float, float]]) -> None:
    """Split steps without a device: the main thread computes, and a library's own threads communicate beside it."""
    idle_by_cause: dict[str, list[Interval]] = {cause: [] for cause in _CAUSES}
    busy: list[tuple[float, float]] = []
    sums: dict[tuple[int, str, str, int], float] = defaultdict(float)
    calls: dict[tuple[int, str], int] = defaultdict(int)
    visited, pauses = bytearray(len(trace)), Pauses(trace)
    for start, end, inner in host.segments(host.main, windows):
        kind = inner.kind
        is_waiting = not kind or kind == "collective"
        cause, detail = _cause(inner, trace) if is_waiting else ("", "")
        pauses.add(start, end, inner, is_idle=not kind and cause == "launch")
        if is_waiting:
            idle_by_cause[cause].append(Interval(start, end, detail, inner.event))
            continue
        if busy and busy[-1][1] == start:
            busy[-1] = busy[-1][0], end
        else:
            busy.append((start, end))
        sums[inner.name, kind, inner.phase, inner.place] += end - start
        if not visited[inner.event]:
            visited[inner.event] = 1
            calls[inner.name, kind] += 1
    filling = IntervalIndex(host.zeroing)
    split.zeroed = sum(each.end - each.start for span in busy for each in filling.within(*span)) * _MICRO
    for (name, kind, phase, place), microseconds in sums.items():
        _count(split, trace.names[name], kind, phase, trace.names[place] if place >= 0 else "", microseconds * _MICRO)
    for (name, kind), count in calls.items():
        split.note(trace.names[name], kind, count, 0.0)
    _add_sync_calls(split, host, windows)
    # The time before the thread's first event and after its last.
    inside = union(sorted(each for intervals in idle_by_cause.values() for each in intervals))
    around = uncovered((Interval(*window) for window in windows), merged(union(busy), inside))
    idle_by_cause["launch"] = sorted([*idle_by_cause["launch"], *around])
    _split_waiting(split, host, windows, idle_by_cause, busy, IntervalIndex(pauses.end()))


def _split_waiting(
    split: Split,
    host: HostTimeline,
    windows: list[tuple[float, float]],
    idle_by_cause: dict[str, list[Interval]],
    busy: list[tuple[float, float]],
    pauses: IntervalIndex,
) -> None:
    """Divide the time in which the main thread computes nothing.

    Args:
        idle_by_cause: disjoint intervals.
    """
    ranges = host.ranges_of_collectives()
    communicating = uncovered(ranges, merged(union(busy), _gaps_between(windows)))
    index = IntervalIndex(communicating)
    # Collectives during evaluation or checkpoints belong to these.
    candidates = [each for cause, intervals in idle_by_cause.items() if cause != "aside" for each in intervals]
    exposed = uncovered(sorted(part for each in candidates for part in index.within(each.start, each.end)))
    _add_collectives(split, ranges, windows, exposed)
    rest = {cause: uncovered(intervals, union(exposed)) for cause, intervals in idle_by_cause.items()}
    for each in rest["collective"]:
        split.communication[kind_of_collective(each.label)] += each.seconds
    for each in rest["aside"]:
        split.aside[each.label] += each.seconds
    for each in rest["sync"]:
        split.sync[each.label] += each.seconds
    split.data += sum(each.seconds for each in rest["data"])
    for each in rest["launch"]:
        split.launch += each.seconds
        for pause in pauses.within(each.start, each.end):
            split.pauses.add(pause.label, _step_at(pause.start, windows), pause.seconds)


def _step_at(moment: float, windows: list[tuple[float, float]]) -> int:
    """The index of the step that contains a time."""
    return max(0, bisect_right(windows, (moment, float("inf"))) - 1)


def _cause(inner: OpenEvent, trace: ProfileTrace) -> tuple[str, str]:
    """Why nothing is computed while `inner` is the main thread's innermost event: one of `_CAUSES`, and the place."""
    if inner.phase in ASIDE:
        return "aside", inner.phase
    if inner.kind == "collective":
        return "collective", trace.names[inner.name]
    if inner.place >= 0:
        return "sync", shown_place(trace.names[inner.place])
    return ("data" if inner.phase == "data" else "launch"), ""


def _count(split: Split, name: str, kind: str, phase: str, place: str, seconds: float) -> None:
    """Add the time of an operator on the host."""
    split.note(name, kind, 0, seconds)
    if phase in ASIDE:
        split.aside[phase] += seconds
    elif phase == "data":
        split.data += seconds
    elif place:
        split.sync[shown_place(place)] += seconds
    elif kind == "copy":
        split.copies[f"{name} in {phase or 'the step'}"] += seconds
    else:
        split.compute[kind] += seconds


def _split_device(split: Split, trace: ProfileTrace, host: HostTimeline, windows: list[tuple[float, float]]) -> None:
    """Split steps of a device: its streams compute and communicate; the host explains the time in between."""
    # First: it determines the module of each operator.
    causes = _host_causes(trace, host, windows)
    _add_sync_calls(split, host, windows)
    computes, collectives, copies = _lanes(split, trace, host, windows)
    covered = _gaps_between(windows)
    for each in (parts := uncovered(computes, covered)):
        split.compute[each.label] += each.seconds
    covered = merged(union(parts), covered)
    _add_collectives(split, collectives, windows, parts := uncovered(collectives, covered))
    covered = merged(union(parts), covered)
    for each in (parts := uncovered(copies, covered)):
        split.copies[each.label] += each.seconds
    covered = merged(union(parts), covered)
    launched = _launches(trace)
    work = sorted([*computes, *collectives, *copies])
    position = 0
    for gap in uncovered((Interval(*window) for window in windows), covered):
        while position < len(work) and work[position].start < gap.end - _SAME_MOMENT:
            position += 1
        launch, after = gap.end, ""
        if position < len(work):
            launch = launched.get(trace.correlation[work[position].event], gap.end)
            after = trace.name_of(work[position].event)
        late = _explain_gap(split, gap, min(max(launch, gap.start), gap.end), causes)
        if late >= LEAST_MICROSECONDS:
            before = trace.name_of(work[position - 1].event) if position else ""
            split.pauses.add(label_of(before, after), _step_at(gap.start, windows), late * _MICRO)


def _lanes(
    split: Split, trace: ProfileTrace, host: HostTimeline, windows: list[tuple[float, float]]
) -> tuple[list[Interval], list[Interval], list[Interval]]:
    """Kernels that compute (by kind), collectives (by name) and copies (by name), each list sorted."""
    operator_of = {
        trace.external[event]: event
        for event in range(len(trace))
        if trace.category[event] == OP and trace.external[event] >= 0
    }
    lanes: dict[str, list[Interval]] = {"compute": [], "collective": [], "copy": []}
    for event in range(len(trace)):
        category = trace.category[event]
        if category not in (KERNEL, COPY):
            continue
        name = trace.name_of(event)
        kind = "copy" if category == COPY else kind_of_operator(name)
        operator = operator_of.get(trace.external[event], -1)
        if kind not in lanes and operator >= 0 and host.kind[operator] >= 0:
            # The module around the operator is more specific than the name of the kernel.
            of_operator = _KIND_NAMES[host.kind[operator]]
            kind = kind if of_operator in ("other", "copy", "collective") else of_operator
        begin, end = trace.start[event], trace.start[event] + trace.duration[event]
        lanes[kind if kind in lanes else "compute"].append(Interval(begin, end, name if kind in lanes else kind, event))
        if is_inside(begin, windows):
            split.note(name, kind, 1, (end - begin) * _MICRO)
    return sorted(lanes["compute"]), sorted(lanes["collective"]), sorted(lanes["copy"])


def _explain_gap(split: Split, gap: Interval, launch: float, causes: dict[str, IntervalIndex]) -> float:
    """Divide a span in which the device does nothing.

    Args:
        launch: time within the gap at which the host launched the work that ends it.

    Returns:
        The longest part, in microseconds, in which the host was late without a named reason.
    """
    longest = 0.0
    rest = [(gap.start, gap.end)]
    for name in ("aside", "data"):
        for start, end in list(rest):
            causes_inside = causes[name].within(start, end)
            for each in causes_inside:
                if name == "aside":
                    split.aside[each.label] += each.seconds
                else:
                    split.data += each.seconds
            rest.remove((start, end))
            rest += [(a, b) for a, b, *_ in uncovered([Interval(start, end)], union(causes_inside))]
    for start, end in rest:
        late = max(0.0, min(end, launch) - start)
        split.gaps += (end - start - late) * _MICRO
        # After the host has waited for the device, nothing is queued, and the device waits until the host launches
        # again.
        waits = causes["sync"].within(start, start + late) if late else []
        if waits:
            split.sync[waits[0].label] += late * _MICRO
        else:
            split.launch += late * _MICRO
            longest = max(longest, late)
    return longest


def _host_causes(
    trace: ProfileTrace, host: HostTimeline, windows: list[tuple[float, float]]
) -> dict[str, IntervalIndex]:
    causes: dict[str, list[Interval]] = {"aside": [], "data": [], "sync": []}
    for thread in host.threads():
        for start, end, inner in host.segments(thread, windows):
            if inner.phase in ASIDE:
                causes["aside"].append(Interval(start, end, inner.phase))
            elif inner.phase == "data":
                causes["data"].append(Interval(start, end))
            elif inner.place >= 0:
                causes["sync"].append(Interval(start, end, shown_place(trace.names[inner.place])))
    return {name: IntervalIndex(intervals) for name, intervals in causes.items()}


def _add_sync_calls(split: Split, host: HostTimeline, windows: list[tuple[float, float]]) -> None:
    """Count calls that wait: driver calls; on a host without a device the calls that would wait for one."""
    for wait in host.waits if split.on_device else host.named_waits:
        if is_inside(wait.start, windows):
            split.sync_calls[shown_place(wait.place), wait.phase] += 1


def shown_place(name: str) -> str:
    """The place in the name of a range `ascendtune:sync PLACE`; other names are not changed."""
    return name.removeprefix("ascendtune:sync ")


def _add_collectives(
    split: Split, calls: list[Interval], windows: list[tuple[float, float]], exposed: list[Interval]
) -> None:
    for each in exposed:
        split.communication[kind_of_collective(each.label)] += each.seconds
    index = IntervalIndex(exposed)
    split.exposed_seconds = [sum(each.seconds for each in index.within(*window)) for window in windows]
    steps = IntervalIndex([Interval(*window) for window in windows])
    in_windows = [
        Interval(part.start, part.end, call.label) for call in calls for part in steps.within(call.start, call.end)
    ]
    for each in in_windows:
        split.collectives[kind_of_collective(each.label)].append(each.seconds)
    for each in uncovered(sorted(in_windows), union(sorted(exposed))):
        split.hidden[kind_of_collective(each.label)] += each.seconds


def _gaps_between(windows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The time outside the windows."""
    edges = [float("-inf"), *(edge for window in windows for edge in window), float("inf")]
    return [(edges[at], edges[at + 1]) for at in range(0, len(edges), 2)]


def _launches(trace: ProfileTrace) -> dict[int, float]:
    """Correlation id -> time at which the host began to launch the work, in microseconds."""
    return {
        trace.correlation[event]: trace.start[event]
        for event in range(len(trace))
        if trace.category[event] == LAUNCH and trace.correlation[event] >= 0
    }
