"""Use of memory during the profiled steps: by category over time, and the allocations at the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ascendtune.check.profile.host_timeline import RECOMPUTATION
from ascendtune.check.profile.split import ASIDE
from ascendtune.check.profile.trace import MemoryEvents

RECORDED_CATEGORIES = ("weights", "gradients", "optimizer state")
"""Categories whose size at the beginning of the profile is recorded by `train`."""
CATEGORIES = (*RECORDED_CATEGORIES, "activations", "loss", "communication", "batches", "temporary", "other")
"""In the order of the report."""
_NUMBERS = {name: number for number, name in enumerate(CATEGORIES)}
_OTHER = _NUMBERS["other"]
_POINTS = 360
"""Number of points of the curve."""
_MOST_OWNERS = 60
_MICRO = 1e-6


@dataclass(frozen=True)
class MemoryOwner:
    """Tensors that one operator has allocated and that are live at the peak."""

    category: str
    operator: str
    """"" outside operators."""
    phase: str
    size_bytes: int
    """Of all its tensors."""
    count: int


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one rank. All sizes are bytes.

    Attributes:
        peak_seconds: time of the peak since the start of the first profiled step.
        peak_step: index of its step, from 0.
        peak: size at the peak by category.
        initial: size before the profile began, as far as known; included in `peak`.
        allocated: maximum in use according to the allocator; None if it does not count all tensors (CPU).
        reserved: maximum that the allocator had taken from the device; None on CPU.
        seconds: (points,) times of the curve, since the start of the first profiled step.
        curve: category -> (points,) bytes, each at the maximum of total use until the next point.
    """

    peak_seconds: float
    peak_step: int
    peak_phase: str
    peak: dict[str, int]
    owners: list[MemoryOwner]
    initial: dict[str, int] = field(default_factory=dict)
    allocated: int | None = None
    reserved: int | None = None
    seconds: list[float] = field(default_factory=list)
    curve: dict[str, list[int]] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())

    def unused(self) -> int:
        """Bytes that the allocator had taken but never needed: gaps between tensors, or larger steps before."""
        return max(0, (self.reserved or 0) - (self.allocated or 0)) if self.allocated else 0


def memory_use(
    events: MemoryEvents | None, windows: list[tuple[float, float]], held: Mapping[str, int]
) -> MemoryUse | None:
    """The memory of the profiled steps; None if no allocation was recorded.

    Args:
        windows: start and end of each step, in microseconds; must not be empty.
        held: category -> bytes before the first event, as recorded by `train`; empty for traces of other programs.
    """
    order = sorted(range(len(events)), key=events.time.__getitem__) if events is not None else []
    if events is None or not order:
        return None
    categories = _categories(events, order)
    begin, end = windows[0][0], windows[-1][1]
    live = _LiveBytes(events, categories, _before(events, order[0], held))
    initial = _by_category(live.sizes)
    points: list[list[int]] = []
    highest, peak, peak_at, highest_of_point = -1, list(live.sizes), order[0], 0
    scale = _POINTS / max(end - begin, 1e-9)
    allocated = reserved = 0
    for event in order:
        time = events.time[event]
        is_inside = begin <= time <= end
        if is_inside and len(points) <= (at := min(_POINTS - 1, int((time - begin) * scale))):
            points += [list(live.sizes)] * (at + 1 - len(points))
            highest_of_point = live.total
        live.take(event)
        if not is_inside:
            continue
        allocated = max(allocated, events.allocated[event])
        reserved = max(reserved, events.reserved[event])
        if live.total > highest_of_point:
            highest_of_point, points[-1] = live.total, list(live.sizes)
        if live.total > highest:
            highest, peak, peak_at = live.total, list(live.sizes), event
    points += [list(live.sizes)] * (_POINTS - len(points))
    steps = [step for step, window in enumerate(windows) if window[0] <= events.time[peak_at]]
    return MemoryUse(
        peak_seconds=max(0.0, events.time[peak_at] - begin) * _MICRO,
        peak_step=steps[-1] if steps else 0,
        peak_phase=_owner(events, peak_at)[2],
        peak=_by_category(peak),
        owners=_owners(events, order, categories, peak_at),
        initial=initial,
        allocated=allocated if reserved else None,
        reserved=reserved or None,
        seconds=[(end - begin) * _MICRO * at / _POINTS for at in range(_POINTS)],
        curve=_curve(points),
    )


class _LiveBytes:
    """Live bytes by category, while events are processed in order.

    Args:
        before: bytes of each category before the first event.
    """

    def __init__(self, events: MemoryEvents, categories: dict[int, int], before: list[int]) -> None:
        self.sizes = before
        self.total = sum(before)
        self._events, self._categories = events, categories
        self._live: dict[int, tuple[int, int]] = {}

    def take(self, event: int) -> None:
        size, address = self._events.size[event], self._events.address[event]
        before = self._live.pop(address, None)
        if before is not None:
            # Freed by this event; or, if this is an allocation, its free was not recorded.
            self._add(before[0], -before[1])
        elif size < 0:
            # Allocated before the first event, in an unknown category.
            self._add(_OTHER, -min(-size, self.sizes[_OTHER]))
        if size >= 0:
            # Allocations that `_categories` excludes count as 0 bytes.
            category = self._categories.get(event)
            self._live[address] = (_OTHER, 0) if category is None else (category, size)
            self._add(*self._live[address])

    def _add(self, category: int, size: int) -> None:
        self.sizes[category] += size
        self.total += size


def _by_category(sizes: list[int]) -> dict[str, int]:
    return {name: size for name, size in zip(CATEGORIES, sizes, strict=True) if size}


def _before(events: MemoryEvents, first: int, held: Mapping[str, int]) -> list[int]:
    """Bytes by category before the event `first`."""
    sizes = [held.get(name, 0) for name in CATEGORIES]
    if events.reserved[first] > 0:
        # The allocator of an accelerator counts all tensors.
        sizes[_OTHER] = max(0, events.allocated[first] - events.size[first] - sum(sizes))
    return sizes


def _categories(events: MemoryEvents, order: list[int]) -> dict[int, int]:
    """Allocation -> number of its category, which depends on when it is freed.

    Temporary copies of collectives whose free was not recorded are excluded: Gloo frees them on threads that the
    profiler does not record, and they would count as live forever.
    """
    categories: dict[int, int] = {}
    live: dict[int, int] = {}
    for event in order:
        address = events.address[event]
        is_end = events.size[event] < 0
        if (allocation := live.pop(address, None)) is not None:
            owner = _owner(events, allocation)
            if is_end or not _is_of_collective(owner):
                categories[allocation] = _category(owner, _owner(events, event)[2])
        if not is_end:
            live[address] = event
    staying = [(event, _owner(events, event)) for event in live.values()]
    return categories | {event: _category(owner, None) for event, owner in staying if not _is_of_collective(owner)}


def _is_of_collective(owner: tuple[str, str, str]) -> bool:
    """Whether a collective itself allocates, and not FSDP around it, which allocates weights and gradients."""
    name, kind, _ = owner
    return kind == "collective" and not name.lower().startswith("fsdp::")


def _category(owner: tuple[str, str, str], freed_in: str | None) -> int:
    """The number of an allocation's category.

    Args:
        owner: name, kind and phase of the operator that allocates.
        freed_in: phase in which it is freed; None if it is not.
    """
    _, kind, phase = owner
    stays = freed_in != phase
    if phase == "backward" and stays:
        name = "gradients"
    elif phase == "data":
        name = "batches"
    elif kind == "collective":
        name = "communication"
    elif phase in ASIDE or (not phase and freed_in is None):
        name = "other"
    elif phase in ("forward", RECOMPUTATION, ""):
        name = "loss" if kind == "loss" else "activations" if stays else "temporary"
    elif phase == "optimizer" and freed_in is None:
        name = "optimizer state"
    else:
        name = "temporary"
    return _NUMBERS[name]


def _owner(events: MemoryEvents, event: int) -> tuple[str, str, str]:
    number = events.owner[event]
    return events.owners[number] if number >= 0 else ("", "", "")


def _owners(events: MemoryEvents, order: list[int], categories: dict[int, int], peak_at: int) -> list[MemoryOwner]:
    """Allocations that are live at the event `peak_at`, the largest first."""
    live: dict[int, int] = {}
    for event in order:
        if events.size[event] >= 0:
            live[events.address[event]] = event
        else:
            live.pop(events.address[event], None)
        if event == peak_at:
            break
    sizes: Counter[tuple[int, str, str]] = Counter()
    counts: Counter[tuple[int, str, str]] = Counter()
    for event in live.values():
        if event not in categories:
            continue
        name, _, phase = _owner(events, event)
        key = categories[event], name, phase
        sizes[key] += events.size[event]
        counts[key] += 1
    return [
        MemoryOwner(CATEGORIES[category], name, phase, size, counts[category, name, phase])
        for (category, name, phase), size in sizes.most_common(_MOST_OWNERS)
    ]


def _curve(points: list[list[int]]) -> dict[str, list[int]]:
    """The curves of the categories that are used."""
    columns = {name: [point[number] for point in points] for name, number in _NUMBERS.items()}
    return {name: values for name, values in columns.items() if any(values)}
