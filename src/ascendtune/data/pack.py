"""Best-fit packing: rows into sequences of at most `capacity` tokens, with as little space left as possible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
