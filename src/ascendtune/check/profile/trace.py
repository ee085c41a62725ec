"""A trace in memory, in columns of numbers: a Python object per event would need ten times the memory."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any, TypeGuard

from ascendtune.check.profile.trace_file import TraceFile
from ascendtune.core.errors import InputError

OP, RANGE, KERNEL, COPY, LAUNCH = range(5)
"""Categories: an operator on the host; a named range on the host; a kernel; a copy or fill by the device; a driver call
that launches work or waits for it."""

_CATEGORIES = {
    "cpu_op": OP,
    "user_annotation": RANGE,
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": COPY,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "privateuse1_runtime": LAUNCH,
    "privateuse1_driver": LAUNCH,
}
IN_DOUBLE = " (float64)"
"""Suffix of the name of an operator that has an input in float64, if the trace has the dtypes of inputs."""
_INSTANT, _MEMORY = "cpu_instant_event", "[memory]"
MOST_EVENTS = 20_000_000
_MOST_NAMES = 1_000_000
_MOST_DEVICES = 64
_LONGEST_NAME = 300
_LARGEST_NUMBER = 1 << 62
_LARGEST_MICROSECONDS = 1e17
"""Before torch 2.3 traces had microseconds since 1970, which are 1.7e15."""


class MemoryEvents:
    """Allocations and frees on one device. Position i of every column belongs to one event.

    Attributes:
        thread: (events,) int32, as in `ProfileTrace`.
        time: (events,) fp64 microseconds since the first event of the file.
        size: (events,) int64 bytes; negative for a free.
        address: (events,) int64.
        allocated: (events,) int64 bytes in use after the event; on CPU those of recorded allocations only.
        reserved: (events,) int64 bytes that the allocator has taken from the device; 0 on CPU.
        owner: (events,) int32 index into `owners`; -1 until set by `HostTimeline.segments`.
        owners: (name of the innermost operator, its kind, phase) of the thread at that time.
    """

    def __init__(self) -> None:
        self.thread, self.owner = array("i"), array("i")
        self.time = array("d")
        self.size, self.address = array("q"), array("q")
        self.allocated, self.reserved = array("q"), array("q")
        self.owners: list[tuple[str, str, str]] = []

    def __len__(self) -> int:
        return len(self.time)


class ProfileTrace:
    """The events of one rank that are relevant for its time. Position i of every column belongs to one event.

    Attributes:
        names: the different names.
        category: (events,) int8, one of the constants above.
        name: (events,) int32 index into `names`.
        thread: (events,) int32, 0 is the first thread or stream in the file.
        start: (events,) fp64 microseconds since the first event of the file.
        duration: (events,) fp64 microseconds.
        external: (events,) int64: equal for an operator and the kernels that it launched; -1 without.
        correlation: (events,) int64: equal for a launch and its kernel; -1 without.
        sequence: (events,) int64: equal for an operator of the forward pass and its backward pass; -1 without.
        values: the file's values beside the events.
        memory: (type, index) of a device, where type 0 is the host -> its allocations; empty if none were recorded.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.memory: dict[tuple[int, int], MemoryEvents] = {}
        self.category, self.name, self.thread = array("b"), array("i"), array("i")
        self.start, self.duration = array("d"), array("d")
        self.external, self.correlation, self.sequence = array("q"), array("q"), array("q")
        self.values: dict[str, Any] = {}
        self._ids: dict[str, int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}

    def __len__(self) -> int:
        return len(self.start)

    def name_of(self, event: int) -> str:
        return self.names[self.name[event]]

    def has_device(self) -> bool:
        """Whether it has kernels of a device; otherwise operators compute on the host."""
        return KERNEL in self.category

    def add(
        self,
        category: int,
        name: str,
        thread: tuple[Any, Any],
        start: float,
        duration: float,
        external: int = -1,
        correlation: int = -1,
        sequence: int = -1,
    ) -> None:
        """Append an event; start and duration in microseconds."""
        number = self._ids.get(name)
        if number is None:
            if len(self.names) >= _MOST_NAMES:
                raise limit_error("different names", _MOST_NAMES)
            number = self._ids[name] = len(self.names)
            self.names.append(name[:_LONGEST_NAME])
        if len(self.start) >= MOST_EVENTS:
            raise limit_error("events")
        self.category.append(category)
        self.name.append(number)
        self.thread.append(self._lane(thread))
        self.start.append(start)
        self.duration.append(duration)
        self.external.append(external)
        self.correlation.append(correlation)
        self.sequence.append(sequence)

    def add_memory(self, thread: tuple[Any, Any], time: float, arguments: dict[str, Any]) -> None:
        """Append an event of an allocator in the form of torch.profiler; `time` in microseconds."""
        keys = ("Device Type", "Device Id", "Bytes", "Addr", "Total Allocated", "Total Reserved")
        values = [arguments.get(word) for word in keys]
        if not all(type(each) is int and -_LARGEST_NUMBER < each < _LARGEST_NUMBER for each in values[:4]):
            return
        kind, number, size, address, allocated, reserved = map(_number, values)
        device = kind, number
        events = self.memory.get(device)
        if events is None:
            if len(self.memory) >= _MOST_DEVICES:
                raise limit_error("devices", _MOST_DEVICES)
            events = self.memory[device] = MemoryEvents()
        if len(events) >= MOST_EVENTS:
            raise limit_error("allocations")
        events.thread.append(self._lane(thread))
        events.owner.append(-1)
        events.time.append(time)
        events.size.append(size)
        events.address.append(address)
        events.allocated.append(allocated)
        events.reserved.append(reserved)

    def memory_of_device(self) -> MemoryEvents | None:
        """The allocations of the accelerator if there are any, otherwise of the host; None if none were recorded."""
        return max(self.memory.items(), key=lambda item: (item[0][0] > 0, len(item[1])))[1] if self.memory else None

    def _lane(self, thread: tuple[Any, Any]) -> int:
        return self._threads.setdefault(thread, len(self._threads))


def read_trace(path: Path) -> ProfileTrace:
    """Read a trace in a file of torch.profiler, `.json` or `.json.gz`.

    Raises:
        InputError: see `TraceFile.events`; or the trace has no event with a duration.
        RecipeError: the file is not a regular file, or cannot be read.
    """
    trace, file = ProfileTrace(), TraceFile(path)
    origin: float | None = None
    has_text_times = False
    kind_of, add, nothing = _CATEGORIES.get, trace.add, dict[str, Any]().get
    for event in file.events():
        category = event.get("cat")
        kind = kind_of(category) if type(category) is str else None
        if kind is None or event.get("ph") != "X":
            if category == _INSTANT and event.get("name") == _MEMORY:
                start, arguments = event.get("ts"), event.get("args")
                if _is_time(start) and type(arguments) is dict:
                    origin = start if origin is None else origin
                    trace.add_memory((_plain(event.get("pid")), _plain(event.get("tid"))), start - origin, arguments)
            continue
        name, start, duration = event.get("name"), event.get("ts"), event.get("dur")
        if type(name) is not str or not (_is_time(start) and _is_time(duration)) or duration < 0:
            has_text_times = has_text_times or type(start) is str
            continue
        if origin is None:
            origin = start
        arguments = event.get("args")
        number = arguments.get if type(arguments) is dict else nothing
        if (types := number("Input type")) and type(types) is list and "double" in types:
            name += IN_DOUBLE
        add(
            kind,
            name,
            (_plain(event.get("pid")), _plain(event.get("tid"))),
            start - origin,
            duration,
            _number(number("External id")),
            _number(number("correlation")),
            _number(number("Sequence number")),
        )
    trace.values = file.values
    if not len(trace):
        raise _without_events(path, is_of_torch_npu=has_text_times)
    return trace


def _without_events(path: Path, *, is_of_torch_npu: bool) -> InputError:
    if is_of_torch_npu:
        return InputError(
            f"{path.name} is the timeline of torch_npu's profiler, which cannot be read alone",
            code="unsupported-trace",
            remedy="give the folder ASCEND_PROFILER_OUTPUT, with kernel_details.csv and step_trace_time.csv, or "
            "ascend_pytorch_profiler_RANK.db",
            where=path,
        )
    return InputError(
        f"{path.name} contains no operator and no kernel",
        code="invalid-trace",
        remedy="give a trace that torch.profiler has written with activities=[ProfilerActivity.CPU, …]",
        where=path,
    )


def _is_time(value: Any) -> TypeGuard[float]:
    kind = type(value)
    return (kind is float or kind is int) and -_LARGEST_MICROSECONDS < value < _LARGEST_MICROSECONDS


def _number(value: Any) -> int:
    return value if value is not None and type(value) is int and -_LARGEST_NUMBER < value < _LARGEST_NUMBER else -1


def _plain(value: Any) -> Any:
    """A process or thread id, which is a number or a string."""
    if type(value) is int:
        return value
    if type(value) is str:
        return value[:_LONGEST_NAME]
    return value if type(value) is float and math.isfinite(value) else None


def limit_error(what: str, limit: int = MOST_EVENTS, *, where: Path | None = None) -> InputError:
    """The error for a trace, or its file `where`, with more than `limit` of `what`."""
    return InputError(
        f"{where.name if where else 'the trace'} has more than {limit:,} {what}",
        code="trace-too-large",
        remedy="record fewer steps",
        where=where,
    )
