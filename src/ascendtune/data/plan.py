"""Assigns rows to steps: a pure function of lengths, seed and batch size, so every rank knows the whole plan.

Because every rank knows the global batch without communication, it can normalise its loss by the global number of
labelled tokens before the backward pass, and a resumed run, or one on another number of devices, uses the same data.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

PackedSequence = tuple[int, ...]
"""Group numbers."""
_BLOCK = 1 << 20
"""Rows that are handled at a time if each needs more temporary bytes than are kept of it."""


class Bins:
    """Group numbers in bins, as two flat arrays: lists of millions of rows would take a hundred bytes per row.

    Args:
        groups: (groups,) int32 numbers, bin after bin.
        starts: (bins + 1,) int64, begin of each bin in `groups`; the last is their number.
    """

    def __init__(self, groups: NDArray[np.int32], starts: NDArray[np.int64]) -> None:
        self.groups, self.starts = groups, starts

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> PackedSequence:
        if not 0 <= number < len(self):
            raise IndexError(f"bin {number} of {len(self)}")
        return tuple(self.groups[self.starts[number] : self.starts[number + 1]].tolist())

    def sums(self, of_group: NDArray[np.int32]) -> NDArray[np.int64]:
        """(bins,) int64: per bin the sum of its groups' values in `of_group`, (groups,) int32."""
        if not len(self):
            return np.empty(0, np.int64)
        summed: NDArray[np.int64] = np.add.reduceat(of_group[self.groups], self.starts[:-1], dtype=np.int64)
        return summed


class Epoch:
    """The sequences of one epoch in their order, created on access.

    Args:
        order: (sequences,) integers: numbers of `bins`, or of groups, one per sequence, if `bins` is None.
    """

    def __init__(self, order: NDArray[np.int32], bins: Bins | None = None) -> None:
        self._order, self._bins = order, bins

    def __len__(self) -> int:
        return len(self._order)

    def sequences(self, begin: int, end: int) -> list[PackedSequence]:
        """The sequences from `begin` to `end`, fewer at the end of the epoch."""
        numbers = self._order[begin:end].tolist()
        return [(group,) for group in numbers] if self._bins is None else [self._bins[number] for number in numbers]

    def sums(self, of_group: NDArray[np.int32]) -> NDArray[np.int64]:
        """(sequences,) int64: per sequence the sum of its groups' values in `of_group`, (groups,) int32."""
        if self._bins is None:
            return of_group[self._order].astype(np.int64)
        in_order: NDArray[np.int64] = self._bins.sums(of_group)[self._order]
        return in_order


class BatchPlan:
    """Global batches for every step of training.

    A *sequence* is a tuple of group numbers: one group, or up to `capacity` tokens of them when packing. A group is
    `group_size` consecutive rows; groups of several rows are not packed by their lengths, so that every step has the
    same number of them.

    Args:
        lengths: (rows,) tokens of each row.
        label_counts: (rows,) labelled tokens of each row.
        capacity: tokens that a packed sequence has space for; None makes every group its own sequence.
        global_batch: sequences per step, over all devices and accumulation.
        seed: decides the order of every epoch; None keeps the order of the file (evaluation).
        group_size: rows of a group, from the data set.
        datasets: name -> groups of each data set of a mixture, in order; empty if there is only one.
        apart: whether no step has groups of two data sets; only without a seed.
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
        datasets: Mapping[str, int] | None = None,
        apart: bool = False,
    ) -> None:
        self._row_lengths = lengths
        self._group_size = group_size
        self._lengths = _of_groups(lengths, group_size)
        self._label_counts = _of_groups(label_counts, group_size)
        self._capacity = capacity if group_size == 1 else None
        self._seed = seed
        self.global_batch = global_batch
        self.datasets = tuple(datasets or ())
        """Names of the data sets of a mixture."""
        self._ends = np.cumsum([*(datasets or {}).values()], dtype=np.int64)
        self._apart = apart and len(self._ends) > 1
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)
        self.sequences_per_epoch = len(self._epoch(0))
        self._starts = self._starts_of_steps()
        self.steps_per_epoch = len(self._starts) - 1

    def _make_epoch(self, epoch: int) -> Epoch:
        groups = len(self._lengths)
        random = None if self._seed is None else np.random.default_rng((self._seed, epoch))
        order = (np.arange(groups) if random is None else random.permutation(groups)).astype(np.int32)
        if self._capacity is None:
            return Epoch(order)
        if self._apart:
            return self._packed_apart(self._capacity)
        bins = pack_best_fit(self._lengths, self._capacity, order)
        shuffled = np.arange(len(bins)) if random is None else random.permutation(len(bins))
        return Epoch(shuffled.astype(np.int32), bins)

    def _packed_apart(self, capacity: int) -> Epoch:
        groups, starts = [np.empty(0, np.int32)], [np.zeros(1, np.int64)]
        for first, end in pairwise([0, *self._ends.tolist()]):
            bins = pack_best_fit(self._lengths[first:end], capacity, np.arange(end - first, dtype=np.int32))
            groups.append(bins.groups + np.int32(first))
            starts.append(bins.starts[1:] + first)
        joined = Bins(np.concatenate(groups), np.concatenate(starts))
        return Epoch(np.arange(len(joined), dtype=np.int32), joined)

    def _starts_of_steps(self) -> NDArray[np.int64]:
        """(steps + 1,) int64: the first sequence of each step of an epoch, and the number of all."""
        ends = [self.sequences_per_epoch]
        if self._apart:
            # The first groups of the sequences are ascending from data set to data set.
            firsts = [each[0] for each in self._epoch(0).sequences(0, self.sequences_per_epoch)]
            of_set = np.searchsorted(self._ends, firsts, side="right")
            ends = np.searchsorted(of_set, np.arange(len(self._ends)), side="right").tolist()
        starts = [np.arange(first, end, self.global_batch) for first, end in pairwise([0, *ends])]
        return np.concatenate([*starts, [self.sequences_per_epoch]]).astype(np.int64)

    def batch(self, step: int) -> list[PackedSequence]:
        """The sequences of `step` (from 0). The last step of an epoch, or of a data set, may have fewer."""
        epoch, within = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch).sequences(int(self._starts[within]), int(self._starts[within + 1]))

    def dataset_of(self, sequence: PackedSequence) -> int:
        """The index in `datasets` of the data set of the first group; 0 if there is only one data set."""
        return int(np.searchsorted(self._ends, sequence[0], side="right")) if self.datasets else 0

    @property
    def first_epoch(self) -> Epoch:
        """All sequences of the first epoch."""
        return self._epoch(0)

    def micro_batch_starts(self, per_device: int, end: int) -> NDArray[np.int64]:
        """(micro-batches,) int64: the first sequence, below `end`, of each micro-batch of an epoch.

        A run that is resumed on other devices keeps its global batch, which may then end within a micro-batch.
        """
        within = np.arange(0, self.global_batch, per_device)
        starts = (np.arange(0, end, self.global_batch)[:, None] + within).reshape(-1)
        return starts[starts < end]

    def groups(self, sequences: list[PackedSequence]) -> int:
        """Groups in `sequences`: the divisor of a loss per pair or per answer."""
        return sum(map(len, sequences))

    def labelled_tokens(self, sequences: list[PackedSequence]) -> int:
        """Labelled tokens in `sequences`: the divisor of a loss per token."""
        return int(self._label_counts[_groups(sequences)].sum())

    def tokens(self, sequences: list[PackedSequence]) -> int:
        """Real tokens in `sequences`, padding not counted."""
        return int(self._lengths[_groups(sequences)].sum())

    def tokens_by_dataset(self, sequences: list[PackedSequence]) -> list[int]:
        """Real tokens in `sequences` of each of `datasets`."""
        groups = _groups(sequences)
        of_set = np.searchsorted(self._ends, groups, side="right")
        counts: list[int] = np.bincount(of_set, self._lengths[groups], len(self._ends)).astype(np.int64).tolist()
        return counts

    def groups_of_datasets(self) -> list[slice]:
        """The groups of each of `datasets`; all groups if there is only one data set."""
        return [slice(first, end) for first, end in pairwise([0, *(self._ends.tolist() or [len(self._lengths)])])]

    def padding_ratio(self, per_device: int) -> float:
        """Share of the computed positions that are padding in the first epoch, if rows of a batch are padded."""
        longest = self.first_epoch.sums(self._row_lengths.reshape(-1, self._group_size).max(axis=1))
        if not len(longest):
            return 0.0
        starts = self.micro_batch_starts(per_device, len(longest))
        # Rows of a micro-batch times the longest of them; the last micro-batch may have fewer rows.
        rows = np.diff(starts, append=len(longest)) * self._group_size
        positions = int((np.maximum.reduceat(longest, starts) * rows).sum())
        return 1 - int(self._row_lengths.sum(dtype=np.int64)) / positions


def _of_groups(counts: NDArray[np.int32], group_size: int) -> NDArray[np.int32]:
    return counts if group_size == 1 else counts.reshape(-1, group_size).sum(axis=1, dtype=np.int32)


def _groups(sequences: list[PackedSequence]) -> list[int]:
    return [group for groups in sequences for group in groups]


def micro_batches_of_rank(
    sequences: list[PackedSequence], *, rank: int, world_size: int, per_device: int
) -> list[list[PackedSequence]]:
    """The micro-batches of one rank, equally many on every rank; at the end of an epoch some ranks' last one is empty.

    Micro-batch m of rank r starts at sequence (m × world_size + r) × per_device, so that a step has the same sequences
    on any number of ranks.
    """
    micro_batches = math.ceil(len(sequences) / (world_size * per_device))
    starts = [(micro * world_size + rank) * per_device for micro in range(micro_batches)]
    return [sequences[start : start + per_device] for start in starts]


def pack_best_fit(lengths: NDArray[np.int32], capacity: int, order: NDArray[np.int32]) -> Bins:
    """Assign every row to a bin, longest rows first, each to the fullest bin that still has space.

    The number of bins depends on the lengths only; `order` decides which of two equally long rows comes first. Rows of
    one length are placed together: the bin of the first of them stays the fullest that fits until it has no space for
    the next. So the number of rounds is the number of pairs of a length and a space that occur, not of rows.

    Args:
        lengths: (rows,) int32 tokens of each row, from 1 to `capacity`.
        capacity: tokens that a bin has space for.
        order: (rows,) int32 permutation of the rows.

    Returns:
        Row numbers per bin, bins in the order in which they were opened.
    """
    by_length = _longest_first(lengths, order)
    placed = _Placed(len(by_length))
    # Bins with exactly s tokens of space; the last one is used first.
    with_space = [array("i") for _ in range(capacity + 1)]
    # Bit s is set if some bin has exactly s tokens of space: the fullest bin that fits is the lowest set bit from
    # `length` up, found without a search.
    spaces = 0
    counts = np.bincount(lengths, minlength=1)
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            large_enough = spaces >> length
            space = length + (large_enough & -large_enough).bit_length() - 1 if large_enough else capacity
            each = min(space // length, left)
            bins = left // each
            if large_enough:
                open_bins = with_space[space]
                bins = min(bins, len(open_bins))
                filled = open_bins[: -bins - 1 : -1]
                del open_bins[-bins:]
                if not open_bins:
                    spaces ^= 1 << space
            else:
                filled = array("i", range(placed.bins, placed.bins + bins))
            placed.put(filled, each)
            left -= bins * each
            if remaining := space - each * length:
                spaces |= 1 << remaining
                with_space[remaining] += filled
    return placed.in_bins(by_length)


def _longest_first(lengths: NDArray[np.int32], order: NDArray[np.int32]) -> NDArray[np.int32]:
    """(rows,) int32: `order`, sorted by descending length."""
    shortfall = lengths.max(initial=0) - lengths
    # Integers of 16 bits are sorted in linear time.
    keys = shortfall.astype(np.uint16) if shortfall.max(initial=0) < 1 << 16 else shortfall
    by_length: NDArray[np.int32] = order[np.argsort(keys[order], kind="stable")]
    return by_length


class _Placed:
    """Rows in bins: per row its bin, and the number of rows that were in the bin before."""

    def __init__(self, rows: int) -> None:
        self.bins = 0
        self._rows = 0
        self._bin_of = np.empty(rows, np.int32)
        self._place_of = np.empty(rows, np.int32)
        # Memory of bins that are never opened is not used.
        self._sizes = np.zeros(rows, np.int32)

    def put(self, bins: array[int], each: int) -> None:
        """Put the next `len(bins) * each` rows into `bins`, `each` consecutive ones into every bin."""
        numbers = np.frombuffer(bins, np.int32)
        rows = slice(self._rows, self._rows + len(bins) * each)
        self._rows = rows.stop
        self._bin_of[rows].reshape(-1, each)[:] = numbers[:, None]
        before = self._sizes[numbers]
        self._place_of[rows].reshape(-1, each)[:] = before[:, None] + np.arange(each, dtype=np.int32)
        self._sizes[numbers] = before + each
        self.bins = max(self.bins, int(numbers.max()) + 1)

    def in_bins(self, rows: NDArray[np.int32]) -> Bins:
        """The bins with the rows `rows`, (rows,) int32, in the order in which they were put there."""
        starts = np.concatenate(([0], np.cumsum(self._sizes[: self.bins], dtype=np.int64)))
        grouped = np.empty_like(rows)
        for begin in range(0, len(rows), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            grouped[starts[self._bin_of[block]] + self._place_of[block]] = rows[block]
        return Bins(grouped, starts)
