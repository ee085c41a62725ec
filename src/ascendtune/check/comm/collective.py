"""The collectives by their names in torch.distributed, their bandwidths as in nccl-tests, and exact values by dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """A collective with data. `size` is as in nccl-tests: bytes of the larger of a rank's two buffers."""

    name: str
    bus_factor: Callable[[int], float]
    """Number of ranks -> busbw / algbw (nccl-tests, doc/PERFORMANCE.md)."""
    spread: bool = False
    """Whether the larger buffer has one part per rank."""
    reduces: bool = False

    def count(self, size_bytes: int, itemsize: int, ranks: int) -> int:
        """Number of elements in the part of one rank, at least one."""
        return max(1, size_bytes // (itemsize * (ranks if self.spread else 1)))

    def size_bytes(self, count: int, itemsize: int, ranks: int) -> int:
        return count * itemsize * (ranks if self.spread else 1)

    def sizes(self, itemsize: int, ranks: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """(elements, bytes) of each size: from `first` bytes, in whole elements, doubling up to `last` bytes."""
        requested, before = first, None
        while requested <= last:
            count = self.count(requested, itemsize, ranks)
            size = self.size_bytes(count, itemsize, ranks)
            if count != before:
                yield count, size
            before, requested = count, 2 * max(requested, size)

    def bandwidths(self, size_bytes: int, seconds: float, ranks: int) -> tuple[float, float]:
        """algbw and busbw in bytes per second.

        algbw = size / time; busbw = algbw x bus_factor (nccl-tests, doc/PERFORMANCE.md). busbw does not depend on the
        number of ranks and can be compared with the speed of the links.
        """
        algorithm = size_bytes / seconds
        return algorithm, algorithm * self.bus_factor(ranks)


def _twice_around(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _once_around(ranks: int) -> float:
    return (ranks - 1) / ranks


def _direct(ranks: int) -> float:
    return 1.0


COLLECTIVES = {
    each.name: each
    for each in (
        Collective("all_reduce", _twice_around, reduces=True),
        Collective("all_gather", _once_around, spread=True),
        Collective("reduce_scatter", _once_around, spread=True, reduces=True),
        Collective("broadcast", _direct),
        Collective("all_to_all", _once_around, spread=True),
        Collective("send_recv", _direct),
    )
}
"""By name. `send_recv` is a ring: every rank sends to the next and receives from the previous one."""

BARRIER = "barrier"


LARGEST_EXACT = {
    "float64": 1 << 53,
    "float32": 1 << 24,
    "float16": 1 << 11,
    "bfloat16": 1 << 8,
    "float8_e4m3fn": 1 << 4,
    "float8_e5m2": 1 << 3,
    "int64": (1 << 63) - 1,
    "int32": (1 << 31) - 1,
    "int16": (1 << 15) - 1,
    "int8": (1 << 7) - 1,
    "uint64": (1 << 64) - 1,
    "uint32": (1 << 32) - 1,
    "uint16": (1 << 16) - 1,
    "uint8": (1 << 8) - 1,
    "bool": 1,
    "complex64": 1 << 24,
    "complex128": 1 << 53,
}
"""dtype of torch -> the largest n such that all whole numbers from 0 to n are exact in it."""

_PRIMES = (251, 127, 61, 31, 13, 7, 5, 3, 2)


def modulus(dtype: str, terms: int) -> int | None:
    """Number of different values, from 1 on, that a rank may send such that a sum of `terms` of them is exact.

    It is prime, so that the period of the values does not divide buffer sizes. None if fewer than two values fit.
    """
    if dtype == "bool":
        # bool has two values and no exact sum.
        return 2 if terms == 1 else None
    largest = LARGEST_EXACT[dtype] // terms
    return next((prime for prime in _PRIMES if prime <= largest), None)
