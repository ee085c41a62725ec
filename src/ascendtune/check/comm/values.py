"""What ranks send, so that no two ranks and no two neighbouring places send the same; and what must arrive.

Element 0 of rank r is r + 1, wherever that many values fit: an all-reduce of 8 ranks gives 36 there. The others are a
hash of rank and place, so that a shift, an exchange of ranks or an old buffer is not mistaken for the right answer.
Values are whole numbers that the dtype holds exactly, and repeat after `PERIOD` elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

PERIOD = 9973
_TILE = 100 * PERIOD
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def contribution(rank: int, modulus: int) -> torch.Tensor:
    """What `rank` sends: (PERIOD,) int64, from 1 to `modulus`."""
    mixed = torch.arange(PERIOD) * 0x9E3779B1 + rank * 0x85EBCA77
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D
    mixed = (mixed ^ (mixed >> 12)) & 0x7FFFFFFF
    mixed[0] = rank
    return mixed % modulus + 1


def total(ranks: Iterable[int], modulus: int) -> torch.Tensor:
    """What the ranks' contributions add up to: (PERIOD,) int64."""
    return torch.stack([contribution(rank, modulus) for rank in ranks]).sum(0)


@dataclass(frozen=True)
class Part:
    """A part of a buffer: elements `start` to `start + count` hold `values` from place `offset` on."""

    values: torch.Tensor
    start: int
    count: int
    offset: int = 0
    source: int | None = None
    """The rank that they come from, where it is one."""


def fill(buffer: torch.Tensor, part: Part) -> None:
    """Write a part into `buffer`, on whatever device it is."""
    tile = _tile(part, buffer.dtype)
    for at in range(0, part.count, len(tile)):
        size = min(len(tile), part.count - at)
        buffer[part.start + at : part.start + at + size].copy_(tile[:size])


def compare(buffer: torch.Tensor, part: Part, shown: int) -> dict[str, Any]:
    """How many elements of a part are not what they must be; the first `shown` values, and the first wrong one."""
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


def _tile(part: Part, dtype: torch.dtype) -> torch.Tensor:
    values = torch.roll(part.values, -(part.offset % PERIOD))
    return _encoded(values, dtype).repeat(_TILE // PERIOD if part.count > PERIOD else 1)


def _encoded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return (values % 2).bool()
    if dtype.is_complex:
        return torch.complex(values.double(), -values.double()).to(dtype)
    return values.to(dtype)


def _bits(values: torch.Tensor) -> torch.Tensor:
    """(elements, 1 or 2) integers: dtypes that cannot be compared, or not on this CPU, have bits that can."""
    size = values.element_size()
    return values.contiguous().view(_INTEGERS[min(size, 8)]).view(len(values), -1)


def _plain(value: torch.Tensor) -> Any:
    """For JSON: numbers as they are, complex ones as a pair, what is not finite as a word."""
    if value.dtype.is_complex:
        return [_plain(value.real), _plain(value.imag)]
    number = value.item() if value.dtype.itemsize > 1 or not value.dtype.is_floating_point else value.float().item()
    return str(number) if isinstance(number, float) and not abs(number) < float("inf") else number
