"""The collectives, by the names of torch.distributed, and what nccl-tests makes of their times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """`size` below is nccl-tests' column: bytes of the larger of a rank's two buffers."""

    name: str
    bus_factor: Callable[[int], float]
    """Number of ranks -> busbw / algbw (nccl-tests, doc/PERFORMANCE.md)."""
    spread: bool = False
    """Whether that buffer has one part for each rank."""
    reduces: bool = False

    def count(self, size_bytes: int, itemsize: int, ranks: int) -> int:
        """Elements of one rank's part, at least one."""
        return max(1, size_bytes // (itemsize * (ranks if self.spread else 1)))

    def size_bytes(self, count: int, itemsize: int, ranks: int) -> int:
        return count * itemsize * (ranks if self.spread else 1)

    def sizes(self, itemsize: int, ranks: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """(elements, bytes) of each size from `first`, or the least that whole elements make, doubled up to `last`."""
        wanted, before = first, None
        while wanted <= last:
            count = self.count(wanted, itemsize, ranks)
            size = self.size_bytes(count, itemsize, ranks)
            if count != before:
                yield count, size
            before, wanted = count, 2 * max(wanted, size)

    def bandwidths(self, size_bytes: int, seconds: float, ranks: int) -> tuple[float, float]:
        """algbw and busbw in bytes per second.

        algbw is size over time; busbw is what the slowest link must have carried for it, whatever the number of ranks,
        and so can be held against the speed of the hardware.
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
"""Those that carry data. `send_recv` is a ring: every rank sends to the next and receives from the one before."""

BARRIER = "barrier"
