"""Which rows make which step: a pure function of lengths, seed and batch size, so every rank knows the whole plan.

Knowing the global batch without talking is what lets each rank normalise its loss by the global number of labelled
tokens before the backward pass, and what makes a resumed run, or one on another number of devices, see the same data.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ascendtune.data.pack import pack_best_fit

Sequence_ = tuple[int, ...]


class BatchPlan:
    """Global batches for every step of training.

    A *sequence* is a tuple of row numbers: one row when padding, up to `capacity` tokens of rows when packing.

    Args:
        lengths: (rows,) tokens of each row.
        label_counts: (rows,) labelled tokens of each row.
        capacity: tokens a packed sequence holds; None leaves every row a sequence of its own.
        global_batch: sequences per step, over all devices and accumulation.
        seed: decides the order of every epoch; None keeps the order of the file (evaluation).
    """

    def __init__(
        self,
        lengths: NDArray[np.int32],
        label_counts: NDArray[np.int32],
        *,
        capacity: int | None,
        global_batch: int,
        seed: int | None,
    ) -> None:
        self._lengths = lengths
        self._label_counts = label_counts
        self._capacity = capacity
        self._seed = seed
        self.global_batch = global_batch
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)
        self.sequences_per_epoch = len(self._epoch(0))
        self.steps_per_epoch = math.ceil(self.sequences_per_epoch / global_batch)

    def _make_epoch(self, epoch: int) -> list[Sequence_]:
        rows = len(self._lengths)
        random = None if self._seed is None else np.random.default_rng((self._seed, epoch))
        order = np.arange(rows) if random is None else random.permutation(rows)
        if self._capacity is None:
            return [(row,) for row in order.tolist()]
        bins = pack_best_fit(self._lengths, self._capacity, order)
        shuffled = range(len(bins)) if random is None else random.permutation(len(bins)).tolist()
        return [tuple(bins[number]) for number in shuffled]

    def batch(self, step: int) -> list[Sequence_]:
        """The sequences of `step` (from 0). The last step of an epoch may have fewer."""
        epoch, within = divmod(step, self.steps_per_epoch)
        start = within * self.global_batch
        return self._epoch(epoch)[start : start + self.global_batch]

    def labelled_tokens(self, sequences: list[Sequence_]) -> int:
        """Labelled tokens in `sequences`: the divisor of the loss."""
        return int(self._label_counts[_rows(sequences)].sum())

    def tokens(self, sequences: list[Sequence_]) -> int:
        """Real tokens in `sequences`, padding not counted."""
        return int(self._lengths[_rows(sequences)].sum())

    def padding_ratio(self, per_device: int) -> float:
        """Share of the computed positions that are padding in the first epoch; 0 when packing."""
        if self._capacity is not None:
            return 0.0
        sequences = self._epoch(0)
        positions = real = 0
        for start in range(0, len(sequences), per_device):
            longest = [int(self._lengths[row]) for (row,) in sequences[start : start + per_device]]
            positions += max(longest) * len(longest)
            real += sum(longest)
        return 1 - real / positions if positions else 0.0


def _rows(sequences: list[Sequence_]) -> list[int]:
    return [row for rows in sequences for row in rows]


def share_of_rank(sequences: list[Sequence_], *, rank: int, world_size: int, per_device: int) -> list[list[Sequence_]]:
    """The micro-batches of one rank, as many on every rank; at the end of an epoch some ranks' last one is empty.

    Micro-batch m of rank r takes sequences (m × world_size + r) × per_device onward, so that the same sequences make up
    the step on any number of ranks.
    """
    micro_batches = math.ceil(len(sequences) / (world_size * per_device))
    starts = [(micro * world_size + rank) * per_device for micro in range(micro_batches)]
    return [sequences[start : start + per_device] for start in starts]
