"""Amounts in an out-of-memory message: memory of each process, and free memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ascendtune.check.explain.language import say
from ascendtune.core.units import format_bytes

_AMOUNT = r"(\d+(?:\.\d+)?) ?([KMGT]i?B|bytes)"
_FIELDS = {
    "tried_bytes": re.compile(rf"[Tt]ried to allocate {_AMOUNT}"),
    "total_bytes": re.compile(rf"{_AMOUNT} total capacity|total capaci?ty of {_AMOUNT}"),
    "free_bytes": re.compile(rf"{_AMOUNT} (?:is )?free"),
    "allocated_bytes": re.compile(rf"{_AMOUNT} (?:already allocated|is allocated\b)"),
    "reserved_bytes": re.compile(rf"{_AMOUNT} reserved in total"),
    "unused_bytes": re.compile(rf"{_AMOUNT} is reserved\b"),
    "process_bytes": re.compile(rf"this process has {_AMOUNT} memory in use"),
}
_PROCESS = re.compile(rf"Process \d+ has {_AMOUNT} memory in use")
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_OTHERS_RATIO = 0.1
"""Share of the device's memory for runtime and communication buffers; more is attributed to other processes."""
_MOSTLY_OTHERS = 0.4
"""Share of the device's memory from which on other processes are the cause."""
_LEAST_RANKS = 2
"""Fewest other processes on the device whose sizes are compared."""
_SIMILAR = 0.5
"""Largest deviation from the median for ranks of one job, as a share of it."""
_MOSTLY_OWN = 0.8
"""Share of the device's memory in this process from which on no other process is suspected."""
_ONE_TENSOR = 0.5
"""Share of the device's memory from which on a single tensor is too large."""
_NEVER_MEANT = 16
"""Multiple of the device's memory from which on a tensor's size is a fault, and not a large batch."""
_OUTSIDE = "{bytes} are held outside of this process's allocator: another process, communication buffers, or workspace"
_FRAGMENTED = "{bytes} are reserved but not in use, more than was asked for: memory is fragmented"

_WHO_HOLDS = "-smi"
"""Part of the remedies that list the device's processes."""
_SMALLER_BATCH = "batch.per_device"
"""Part of the remedies that reduce the memory of a step."""
_ONE_DEVICE_A_RANK = (
    "one device for each rank: torch.npu.set_device(local_rank) or torch.cuda.set_device(local_rank) before the model "
    'is loaded; device_map={"": local_rank} instead of 0 or "cuda"; the visible devices must not be one card for all'
)
_NOT_OF_THIS_JOB = (
    "`ascendtune devices` (npu-smi info, nvidia-smi) names the processes: ranks of this job need their own devices; "
    "others are in the way: wait for them, or use a free card"
)
_LARGEST_SAMPLE = (
    "find the sample behind it, the longest row or the largest image of the batch, and cut or drop it "
    "(data.max_length, a limit of pixels); a smaller batch helps only where the batch has several rows"
)
_MISCOUNTED = (
    "print the shapes and counts before the call of the frame shown: so large a tensor is a size that was computed "
    "wrongly (a count that was never set, an index out of range, a negative or overflowed number), not a batch"
)


@dataclass(frozen=True)
class Sums:
    """Amounts in an allocator's message; None if it is not there, or the message is cut off before it."""

    tried_bytes: int
    total_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    processes_bytes: tuple[int, ...] = ()
    """Bytes of each process that the message lists; this process may be one of them."""
    process_bytes: int | None = None
    """Bytes of this process, including its memory outside of the allocator."""

    @property
    def own_bytes(self) -> int | None:
        """Bytes of this process, by the best number in the message."""
        total = self.total_bytes
        # If the driver does not know a process's bytes, torch prints the largest number.
        process = None if total is None or (self.process_bytes or 0) > total else self.process_bytes
        return next((size for size in (self.reserved_bytes, process, self.allocated_bytes) if size is not None), None)

    @property
    def are_ranks_of_one_job(self) -> bool:
        """Whether the processes on the device have about as much memory as this one: ranks of one job."""
        if len(self.processes_bytes) < _LEAST_RANKS or self.own_bytes is None:
            return False
        middle = median(self.processes_bytes)
        return all(abs(size - middle) <= _SIMILAR * middle for size in (*self.processes_bytes, self.own_bytes))

    @property
    def is_own(self) -> bool:
        """Whether this process alone uses nearly the whole device."""
        if self.total_bytes is None or self.own_bytes is None:
            return False
        return self.own_bytes > _MOSTLY_OWN * self.total_bytes

    @property
    def is_one_tensor(self) -> bool:
        """Whether the requested tensor alone takes most of the device."""
        return self.total_bytes is not None and self.tried_bytes > _ONE_TENSOR * self.total_bytes

    @property
    def is_miscounted(self) -> bool:
        """Whether the requested size can only be a wrong number."""
        return self.total_bytes is not None and self.tried_bytes > _NEVER_MEANT * self.total_bytes

    @property
    def outside_bytes(self) -> int | None:
        """Bytes in use outside of this process's allocator; a lower bound if the free memory is unknown."""
        if self.total_bytes is None:
            return None
        if self.own_bytes is None:
            return sum(size for size in self.processes_bytes if size <= self.total_bytes) or None
        # The requested bytes were not free.
        free = self.tried_bytes if self.free_bytes is None else self.free_bytes
        return max(0, self.total_bytes - free - self.own_bytes)

    @property
    def are_others_to_blame(self) -> bool:
        """Whether others use more of the device than this process, and more than `_MOSTLY_OTHERS`."""
        outside, total = self.outside_bytes, self.total_bytes
        if outside is None or total is None:
            return False
        return outside > _MOSTLY_OTHERS * total and outside > (self.own_bytes or 0)

    @property
    def unused_bytes(self) -> int | None:
        """Bytes that the allocator has reserved and not allocated: fragments, or the caches of other streams."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)

    @property
    def conclusion(self) -> str | None:
        """One sentence on the use of the memory."""
        tried, total, outside, unused = self.tried_bytes, self.total_bytes, self.outside_bytes, self.unused_bytes
        if total is None:
            return None
        if tried > total:
            return say("one tensor alone is larger than the device: look for a wrong shape before anything else")
        if self.is_one_tensor:
            return say(
                "one tensor alone takes more than half of the device: one sample is too large, or a shape is wrong"
            )
        if outside is not None and outside > max(_OTHERS_RATIO * total, 0):
            return say(_OUTSIDE, bytes=format_bytes(outside))
        if unused is not None and unused >= tried:
            return say(_FRAGMENTED, bytes=format_bytes(unused))
        if self.own_bytes is None or self.free_bytes is None:
            return None
        return say("the model, its activations and the optimizer really fill the device")

    def first_remedies(self) -> tuple[str, ...]:
        """First remedies if other processes use most of the memory, or one tensor requests most of it."""
        others = say(
            "`ascendtune devices` (npu-smi info, nvidia-smi) names the processes: end them, or use a free card"
        )
        if self.are_ranks_of_one_job:
            return (say(_ONE_DEVICE_A_RANK), say(_NOT_OF_THIS_JOB))
        if self.are_others_to_blame:
            return (others,)
        if self.is_miscounted:
            return (say(_MISCOUNTED),)
        return (say(_LARGEST_SAMPLE),) if self.is_one_tensor else ()

    def remedies(self, usual: Sequence[str]) -> tuple[str, ...]:
        """First remedies, then the `usual` ones without those that are useless in that case."""
        first = self.first_remedies()
        useless = (_WHO_HOLDS, _SMALLER_BATCH) if self.are_others_to_blame else (_WHO_HOLDS,)
        return (*first, *(each for each in usual if not (first and any(part in each for part in useless))))

    def headline(self) -> str:
        """Requested and free memory, and the cause if it is known."""
        names = {
            "tried": format_bytes(self.tried_bytes),
            "free": format_bytes(self.free_bytes),
            "total": format_bytes(self.total_bytes),
        }
        if self.total_bytes is None or (self.free_bytes is None and not self.are_others_to_blame):
            return say("{tried} asked for", **names)
        if self.are_ranks_of_one_job:
            names["held"] = format_bytes(sum(self.processes_bytes))
            template = "{count} processes of similar size, most likely ranks of this job, hold {held} of {total}"
            return say(template, count=len(self.processes_bytes), **names)
        if self.are_others_to_blame:
            names["others"] = format_bytes(self.outside_bytes)
            if self.free_bytes is None:
                return say("other processes hold at least {others} of {total}; {tried} asked for", **names)
            return say("other processes hold {others} of {total}; {tried} asked for, {free} free", **names)
        if self.is_one_tensor:
            return say("one tensor alone asks for {tried} of the device's {total}, {free} free", **names)
        if self.is_own:
            names["held"] = format_bytes(self.own_bytes)
            return say("{tried} asked for, {free} of {total} free: this process itself holds {held}", **names)
        return say("{tried} asked for, {free} of {total} free", **names)

    def line(self) -> str:
        named = (
            ("tried", self.tried_bytes),
            ("free", self.free_bytes),
            ("allocated", self.allocated_bytes),
            ("reserved", self.reserved_bytes),
            ("outside", self.outside_bytes),
            ("total", self.total_bytes),
        )
        return ", ".join(f"{say(name)} {format_bytes(value)}" for name, value in named if value is not None)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "outside_bytes": self.outside_bytes, "conclusion": self.conclusion}


def sums_in(text: str) -> Sums | None:
    """Amounts in a message of torch's allocator on CUDA or NPU, of old and new releases."""
    sums = {name: _bytes(pattern.search(text)) for name, pattern in _FIELDS.items()}
    tried, unused = sums.pop("tried_bytes"), sums.pop("unused_bytes")
    if tried is None:
        return None
    if sums["reserved_bytes"] is None and unused is not None and sums["allocated_bytes"] is not None:
        sums["reserved_bytes"] = sums["allocated_bytes"] + unused
    processes = tuple(_bytes(match) or 0 for match in _PROCESS.finditer(text))
    return Sums(tried, **sums, processes_bytes=processes)


def _bytes(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    number, unit = (part for part in match.groups() if part is not None)
    return int(float(number) * _UNITS[unit[0].lower()])
