"""One collective with its own buffers: the values that a rank sends, the call, and the values that must arrive.

No two ranks and no two neighbouring elements send the same value. Element 0 of rank r is r + 1 if the dtype has that
many values: an all-reduce of 8 ranks gives 36 there. Other elements are a hash of rank and index, so that a shift,
swapped ranks or an old buffer are detected. Values are whole numbers that are exact in the dtype; they repeat after
`PERIOD` elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ascendtune.check.comm.world import World

PERIOD = 9973
_TILE = 100 * PERIOD
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def contribution(rank: int, modulus: int) -> torch.Tensor:
    """The values that `rank` sends: (PERIOD,) int64, from 1 to `modulus`."""
    mixed = torch.arange(PERIOD) * 0x9E3779B1 + rank * 0x85EBCA77
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D
    mixed = (mixed ^ (mixed >> 12)) & 0x7FFFFFFF
    mixed[0] = rank
    return mixed % modulus + 1


def total(ranks: Iterable[int], modulus: int) -> torch.Tensor:
    """The sum of the ranks' contributions: (PERIOD,) int64."""
    return torch.stack([contribution(rank, modulus) for rank in ranks]).sum(0)


@dataclass(frozen=True)
class BufferPart:
    """A part of a buffer: elements `start` to `start + count` are `values`, (PERIOD,) int64, from index `offset` on."""

    values: torch.Tensor
    start: int
    count: int
    offset: int = 0
    source: int | None = None
    """The rank that sent the values; None for sums."""


def fill(buffer: torch.Tensor, part: BufferPart) -> None:
    """Write a part into `buffer`: (elements,), any dtype, any device."""
    tile = _tile(part, buffer.dtype)
    for at in range(0, part.count, len(tile)):
        size = min(len(tile), part.count - at)
        buffer[part.start + at : part.start + at + size].copy_(tile[:size])


def compare(buffer: torch.Tensor, part: BufferPart, shown: int) -> dict[str, Any]:
    """The number of wrong elements of a part, the first `shown` values, and the first wrong one.

    Args:
        buffer: (elements,), any dtype, any device.
    """
    tile, wrong, first_wrong = _tile(part, buffer.dtype), 0, None
    for at in range(0, part.count, len(tile)):
        size = min(len(tile), part.count - at)
        seen, right = buffer[part.start + at : part.start + at + size].cpu(), tile[:size]
        if not torch.equal(_bits(seen), _bits(right)):
            differs = (_bits(seen) != _bits(right)).any(dim=1)
            wrong += int(differs.sum())
            if first_wrong is None:
                place = int(differs.nonzero()[0])
                first_wrong = {"element": at + place, "seen": _plain(seen[place]), "expected": _plain(right[place])}
    return {
        "from": part.source,
        "wrong": wrong,
        "seen": [_plain(each) for each in buffer[part.start : part.start + min(shown, part.count)].cpu()],
        "expected": [_plain(each) for each in tile[: min(shown, part.count)]],
        "first_wrong": first_wrong,
    }


def _tile(part: BufferPart, dtype: torch.dtype) -> torch.Tensor:
    values = torch.roll(part.values, -(part.offset % PERIOD))
    return _encoded(values, dtype).repeat(_TILE // PERIOD if part.count > PERIOD else 1)


def _encoded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return (values % 2).bool()
    if dtype.is_complex:
        return torch.complex(values.double(), -values.double()).to(dtype)
    return values.to(dtype)


def _bits(values: torch.Tensor) -> torch.Tensor:
    """The bits of `values`, (elements,), as (elements, 1 or 2) integers: some dtypes cannot be compared on the CPU."""
    size = values.element_size()
    return values.contiguous().view(_INTEGERS[min(size, 8)]).view(len(values), -1)


def _plain(value: torch.Tensor) -> Any:
    """A scalar for JSON: complex numbers as a pair, NaN and infinities as a string."""
    if value.dtype.is_complex:
        return [_plain(value.real), _plain(value.imag)]
    number = value.item() if value.dtype.itemsize > 1 or not value.dtype.is_floating_point else value.float().item()
    return str(number) if isinstance(number, float) and not abs(number) < float("inf") else number


# torch 2.13 renamed these two, and warns on the old names.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class CollectiveGroup:
    """The members of a collective, and the buffers."""

    rank: int
    ranks: tuple[int, ...]
    """All members of the group, `rank` among them."""
    count: int
    """Elements in the part of one rank."""
    dtype: torch.dtype
    modulus: int
    device: torch.device
    group: dist.ProcessGroup | None = None
    roots: tuple[int, ...] = (0,)
    """Roots of broadcasts, one after the other."""
    batches_messages: bool = True
    """See `Device`; otherwise sends and receives of a ring alternate, which takes twice as long."""

    @property
    def index(self) -> int:
        """The index of this rank in the group."""
        return self.ranks.index(self.rank)

    @property
    def total_count(self) -> int:
        """Number of elements of a buffer with one part per rank."""
        return self.count * len(self.ranks)

    def empty(self, count: int) -> torch.Tensor:
        """A buffer of zeros on this rank's device: (count,) in `dtype`."""
        # Created on the host and copied: a device without operators for a dtype may still send it.
        return torch.zeros(count, dtype=self.dtype).to(self.device)

    def from_rank(self, rank: int, *, start: int = 0, count: int | None = None, offset: int = 0) -> BufferPart:
        return BufferPart(contribution(rank, self.modulus), start, self.count if count is None else count, offset, rank)


def group_of(world: World, count: int, dtype: torch.dtype, modulus: int) -> CollectiveGroup:
    """All ranks, each with a part of `count` elements."""
    return CollectiveGroup(
        rank=world.rank,
        ranks=tuple(range(world.size)),
        count=count,
        dtype=dtype,
        modulus=modulus,
        device=world.device.torch_device,
        batches_messages=world.device.batches_messages,
    )


@dataclass(frozen=True)
class Call:
    """A collective that can be run repeatedly; all_reduce and broadcast are in place, as in torch."""

    run: Callable[[], object]
    sent: torch.Tensor
    sends: tuple[BufferPart, ...]
    received: torch.Tensor
    receives: tuple[BufferPart, ...]

    def fill(self) -> None:
        for part in self.sends:
            fill(self.sent, part)

    def clear(self) -> None:
        """Fill with zeros, so that repeated sums do not overflow."""
        self.sent.zero_()

    def compare(self, shown: int = 0) -> list[dict[str, Any]]:
        """One entry for each received part, see `compare`."""
        return [compare(self.received, part, shown) for part in self.receives]


def prepare(name: str, setting: CollectiveGroup) -> Call:
    """The collective `name` with new buffers, which are not filled."""
    return PREPARE[name](setting)


def _all_reduce(it: CollectiveGroup) -> Call:
    data = it.empty(it.count)
    arrives = BufferPart(total(it.ranks, it.modulus), 0, it.count)
    return Call(lambda: dist.all_reduce(data, group=it.group), data, (it.from_rank(it.rank),), data, (arrives,))


def _all_gather(it: CollectiveGroup) -> Call:
    sent, received = it.empty(it.count), it.empty(it.total_count)
    return Call(
        lambda: _gather(received, sent, group=it.group),
        sent,
        (it.from_rank(it.rank),),
        received,
        tuple(it.from_rank(rank, start=at * it.count) for at, rank in enumerate(it.ranks)),
    )


def _reduce_scatter(it: CollectiveGroup) -> Call:
    sent, received = it.empty(it.total_count), it.empty(it.count)
    arrives = BufferPart(total(it.ranks, it.modulus), 0, it.count, offset=it.index * it.count)
    return Call(
        lambda: _scatter(received, sent, group=it.group),
        sent,
        (it.from_rank(it.rank, count=it.total_count),),
        received,
        (arrives,),
    )


def _broadcast(it: CollectiveGroup) -> Call:
    data = it.empty(it.count * len(it.roots))
    parts = [data[at * it.count : (at + 1) * it.count] for at in range(len(it.roots))]
    arrives = tuple(it.from_rank(root, start=at * it.count) for at, root in enumerate(it.roots))

    def run() -> None:
        for part, root in zip(parts, it.roots, strict=True):
            dist.broadcast(part, root, group=it.group)

    return Call(run, data, tuple(part for part in arrives if part.source == it.rank), data, arrives)


def _all_to_all(it: CollectiveGroup) -> Call:
    sent, received = it.empty(it.total_count), it.empty(it.total_count)
    return Call(
        lambda: dist.all_to_all_single(received, sent, group=it.group),
        sent,
        (it.from_rank(it.rank, count=it.total_count),),
        received,
        tuple(it.from_rank(rank, start=at * it.count, offset=it.index * it.count) for at, rank in enumerate(it.ranks)),
    )


def _send_recv(it: CollectiveGroup) -> Call:
    sent, received = it.empty(it.count), it.empty(it.count)
    following, before = it.ranks[(it.index + 1) % len(it.ranks)], it.ranks[it.index - 1]
    send, receive = dist.P2POp(dist.isend, sent, following), dist.P2POp(dist.irecv, received, before)

    def at_once() -> None:
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()

    def in_turn() -> None:
        for operation in (send, receive) if it.index % 2 == 0 else (receive, send):
            operation.op(operation.tensor, operation.peer).wait()

    run = at_once if it.batches_messages else in_turn
    return Call(run, sent, (it.from_rank(it.rank),), received, (it.from_rank(before),))


PREPARE: dict[str, Callable[[CollectiveGroup], Call]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}
