"""Positions of a batch that no gradient reaches, such as padding: what differs there has no effect on the training.

Attention kernels compute other values at padding. The gradients of the outputs of modules are dumped at the same sampled
positions as the outputs; a position of the batch at which all of them are 0, on both sides, is not trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align.tensor_rows import Row

_Batch = tuple[int | None, int]
"""Micro-batch, and how many vectors its tensors have."""


def trained_rows(rows: Sequence[Row]) -> tuple[list[Row], Row | None]:
    """The rows of one rank without outputs that differ only where no gradient reaches, and the first of those.

    After such a difference, tensors with another number of vectors are left out as well: which experts get the tokens
    of the padding decides where those of the others stand.
    """
    if not any(row.is_parted for row in rows if row.key.phase == "forward"):
        return list(rows), None
    positions = _untrained_positions(rows)
    kept: list[Row] = []
    first: Row | None = None
    for row in rows:
        if row.key.phase != "forward" or not row.is_parted:
            kept.append(row)
            continue
        unreached = positions.get(_batch_of(row))
        if unreached is not None and _differs_only_at(row, unreached):
            first = first or row
        elif first is None or _batch_of(row) == _batch_of(first) or row.key.micro_batch != first.key.micro_batch:
            kept.append(row)
    return kept, first


def _untrained_positions(rows: Sequence[Row]) -> Mapping[_Batch, NDArray[np.bool_]]:
    """(samples,) whether the gradients of all outputs are 0 there.

    Sample i of a tensor of T vectors lies in vector i · T // samples, however wide the vectors are.
    """
    found: dict[_Batch, NDArray[np.bool_]] = {}
    for row in rows:
        one, other = (np.array(each.samples) for each in (row.reference, row.candidate))
        if row.key.phase == "backward" and len(row.reference.shape) > 1 and len(one) == len(other):
            batch = _batch_of(row)
            are_zero = (one == 0) & (other == 0)
            before = found.get(batch, are_zero)
            found[batch] = before & are_zero if len(before) == len(are_zero) else np.zeros_like(before)
    return found


def _differs_only_at(row: Row, positions: NDArray[np.bool_]) -> bool:
    """Whether the samples differ at `positions`, (samples,), and agree within the row's limit elsewhere."""
    one, other = (np.array(each.samples) for each in (row.reference, row.candidate))
    if not len(one) == len(other) == len(positions) or positions.all():
        return False
    apart = np.abs(other - one)
    size = max(row.reference.rms, row.candidate.rms)
    elsewhere = apart[~positions]
    # A sample that is not a number on one side is a difference.
    return bool(np.any(apart[positions] > 0) and np.sqrt(np.mean(elsewhere**2)) <= row.limit * size)


def _batch_of(row: Row) -> _Batch:
    return row.key.micro_batch, row.reference.vectors
