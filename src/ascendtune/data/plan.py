"""Which rows make which step: a pure function of lengths, seed and batch size, so every rank knows the whole plan.

Knowing the global batch without talking is what lets each rank normalise its loss by the global number of labelled
tokens before the backward pass, and what makes a resumed run, or one on another number of devices, see the same data.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PackedSequence = tuple[int, ...]
"""Group numbers."""


class BatchPlan:
    """Global batches for every step of training.

    A *sequence* is a tuple of group numbers: one group when padding, up to `capacity` tokens of them when packing. A
    group is `group_size` rows, one after the other; groups of several rows are not packed by their lengths, so that a
    step always sees as many of them.

    Args:
        lengths: (rows,) tokens of each row.
        label_counts: (rows,) labelled tokens of each row.
        capacity: tokens a packed sequence holds; None leaves every group a sequence of its own, padded.
        global_batch: sequences per step, over all devices and accumulation.
        seed: decides the order of every epoch; None keeps the order of the file (evaluation).
        group_size: rows of a group, as the data set says.
    """

    def __init__(
        self,
        lengths: NDArray[np.int32],
        label_counts: NDArray[np.int32],
        *,
        capacity: int | None,
        global_batch: int,
        seed: int | None,
        group_size: int = 1,
    ) -> None:
        self._row_lengths = lengths
        self._group_size = group_size
        self._lengths = _of_groups(lengths, group_size)
        self._label_counts = _of_groups(label_counts, group_size)
        self._pads = capacity is None
        self._capacity = capacity if group_size == 1 else None
        self._seed = seed
        self.global_batch = global_batch
        self.groups_in_all = len(self._lengths)
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)
        self.sequences_per_epoch = len(self._epoch(0))
        self.steps_per_epoch = math.ceil(self.sequences_per_epoch / global_batch)

    def _make_epoch(self, epoch: int) -> list[PackedSequence]:
        groups = len(self._lengths)
        random = None if self._seed is None else np.random.default_rng((self._seed, epoch))
        order = np.arange(groups) if random is None else random.permutation(groups)
        if self._capacity is None:
            return [(group,) for group in order.tolist()]
        bins = pack_best_fit(self._lengths, self._capacity, order)
        shuffled = range(len(bins)) if random is None else random.permutation(len(bins)).tolist()
        return [tuple(bins[number]) for number in shuffled]

    def batch(self, step: int) -> list[PackedSequence]:
        """The sequences of `step` (from 0). The last step of an epoch may have fewer."""
        epoch, within = divmod(step, self.steps_per_epoch)
        start = within * self.global_batch
        return self._epoch(epoch)[start : start + self.global_batch]

    def groups(self, sequences: list[PackedSequence]) -> int:
        """Groups in `sequences`: the divisor of a loss per pair or per answer."""
        return sum(map(len, sequences))

    def labelled_tokens(self, sequences: list[PackedSequence]) -> int:
        """Labelled tokens in `sequences`: the divisor of a loss per token."""
        return int(self._label_counts[_groups(sequences)].sum())

    def tokens(self, sequences: list[PackedSequence]) -> int:
        """Real tokens in `sequences`, padding not counted."""
        return int(self._lengths[_groups(sequences)].sum())

    def padding_ratio(self, per_device: int) -> float:
        """Share of the computed positions that are padding in the first epoch; 0 when packing."""
        if not self._pads:
            return 0.0
        sequences = self._epoch(0)
        by_group = self._row_lengths.reshape(-1, self._group_size)
        positions = real = 0
        for start in range(0, len(sequences), per_device):
            lengths = by_group[[group for (group,) in sequences[start : start + per_device]]]
            positions += int(lengths.max()) * lengths.size
            real += int(lengths.sum())
        return 1 - real / positions if positions else 0.0


def _of_groups(counts: NDArray[np.int32], group_size: int) -> NDArray[np.int32]:
    return counts if group_size == 1 else counts.reshape(-1, group_size).sum(axis=1, dtype=np.int32)


def _groups(sequences: list[PackedSequence]) -> list[int]:
    return [group for groups in sequences for group in groups]


def share_of_rank(
    sequences: list[PackedSequence], *, rank: int, world_size: int, per_device: int
) -> list[list[PackedSequence]]:
    """The micro-batches of one rank, as many on every rank; at the end of an epoch some ranks' last one is empty.

    Micro-batch m of rank r takes sequences (m × world_size + r) × per_device onward, so that the same sequences make up
    the step on any number of ranks.
    """
    micro_batches = math.ceil(len(sequences) / (world_size * per_device))
    starts = [(micro * world_size + rank) * per_device for micro in range(micro_batches)]
    return [sequences[start : start + per_device] for start in starts]


def pack_best_fit(lengths: NDArray[np.int32], capacity: int, order: NDArray[np.int64]) -> list[list[int]]:
    """Assign every row to a bin, longest rows first, each to the fullest bin that still has room.

    How many bins come out depends on the lengths alone; `order` only decides which of two equally long rows goes first.

    Args:
        lengths: (rows,) tokens of each row, all at most `capacity`.
        capacity: tokens a bin holds.
        order: (rows,) a permutation of the rows.

    Returns:
        Row numbers per bin.
    """
    by_length = order[np.argsort(-lengths[order], kind="stable")]
    bins: list[list[int]] = []
    with_space: list[list[int]] = [[] for _ in range(capacity + 1)]
    # Bit s is set when some bin has exactly s tokens of space: the fullest bin that fits is the lowest set bit from
    # `length` up, found without a search.
    spaces = 0
    for row, length in zip(by_length.tolist(), lengths[by_length].tolist(), strict=True):
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            found = with_space[space].pop()
            if not with_space[space]:
                spaces ^= 1 << space
            bins[found].append(row)
        else:
            space, found = capacity, len(bins)
            bins.append([row])
        left = space - length
        if left:
            if not with_space[left]:
                spaces |= 1 << left
            with_space[left].append(found)
    return bins
