"""Finds decoder blocks of a model that repeat others, so that a few can represent all."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

_PERIODS = range(1, 9)


@dataclass(frozen=True)
class Repeats:
    """Blocks `start` … `end` - 1 each have the kind of the block `period` before them."""

    start: int
    end: int
    period: int
    layers: int

    @property
    def edge(self) -> int:
        """Number of blocks at each end of the region whose neighbours may differ from those in the middle."""
        return max(2, self.period)

    def counts(self) -> list[int]:
        """Numbers of layers to trace: two that differ by one period, or all layers if two would be as many."""
        least = self.layers - (self.end - self.start) + 2 * self.edge
        smaller = least + (self.layers - least) % self.period
        return [smaller, smaller + self.period] if smaller + self.period < self.layers else [self.layers]

    def kept(self, count: int) -> list[int]:
        """Indices of the blocks that remain if `count` do: whole periods in the middle of the region are removed."""
        first = min(self.start + self.edge, count)
        return [*range(first), *range(first + self.layers - count, self.layers)]

    def label(self, position: int, count: int) -> str | None:
        """Name of the block at `position` of `count`, the same for all counts; None for blocks in the middle."""
        if position < self.start + self.edge:
            return str(position)
        if position >= count - (self.layers - self.end) - self.edge:
            return str(position - count)
        return None


def find_repeats(kinds: Sequence[Hashable]) -> Repeats:
    """The longest sequence of blocks that repeats with a short period."""
    layers = len(kinds)
    best = Repeats(0, 0, 1, layers)
    for period in _PERIODS:
        start = 0
        for index in range(period, layers + 1):
            if index < layers and kinds[index] == kinds[index - period]:
                continue
            if index - start > (best.end - best.start) and index - start > period:
                best = Repeats(start, index, period, layers)
            start = index - period + 1
    return best


def kinds_of(blocks: Sequence[nn.Module], config: Any) -> list[Hashable]:
    """Properties of each block that determine its bytes: class, weights, which of them train, kind of attention."""
    types = getattr(config.get_text_config(), "layer_types", None)
    return [
        (
            type(block).__name__,
            types[number] if isinstance(types, list) and len(types) == len(blocks) else None,
            tuple((name, tuple(each.shape), each.dtype, each.requires_grad) for name, each in block.named_parameters()),
        )
        for number, block in enumerate(blocks)
    ]
