"""Positions of a batch that no gradient reaches, such as padding: differences there have no effect on the training.

Attention kernels may compute other values at padding. The gradients of the outputs of modules are dumped at the same
sampled positions as the outputs; a position at which all of them are 0, on both sides, is not trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align.tensor_row import TensorRow

_OF_EXPERTS = 2
_Batch = tuple[int | None, int]
"""Micro-batch, and number of vectors of its tensors."""


def trained_rows(rows: Sequence[TensorRow]) -> tuple[list[TensorRow], TensorRow | None]:
    """The rows of one rank without outputs that differ only at untrained positions, and the first of the omitted ones.

    If the norm differs by more than the samples, the whole tensor differs. Few samples may be at untrained positions:
    if a batch has such positions, attention that differs at no other sample counts as such a difference, too. After
    one, norms are not meaningful, and tensors with another number of vectors are omitted as well: the choice of experts
    for padding tokens determines the positions of the other tokens.
    """
    if not any(row.exceeds_limit for row in rows if row.key.phase == "forward"):
        return list(rows), None
    positions = _untrained_positions(rows)
    kept: list[TensorRow] = []
    first: TensorRow | None = None
    for row in rows:
        # After a difference at untrained positions all later norms differ, too.
        is_of_all = row.is_of_norm and first is None and not _is_attention(row)
        if row.key.phase != "forward" or not row.exceeds_limit or is_of_all:
            kept.append(row)
            continue
        unreached = positions.get(_batch_of(row))
        if unreached is not None and unreached.any() and _agrees_elsewhere(row, unreached, first is not None):
            first = first or row
        elif first is None or _batch_of(row) == _batch_of(first) or row.key.micro_batch != first.key.micro_batch:
            kept.append(row)
    return kept, first


def _untrained_positions(rows: Sequence[TensorRow]) -> Mapping[_Batch, NDArray[np.bool_]]:
    """(samples,) whether the gradients of all outputs are 0 there.

    A sample is at the same relative position of each tensor, so in the same one of its vectors, whatever their width.
    """
    untrained: dict[_Batch, NDArray[np.bool_]] = {}
    for row in rows:
        one, other = (np.array(each.samples) for each in (row.reference, row.candidate))
        # Tensors of experts have two dimensions and their own order of tokens.
        if row.key.phase == "backward" and len(row.reference.shape) > _OF_EXPERTS and len(one) == len(other):
            batch = _batch_of(row)
            are_zero = (one == 0) & (other == 0)
            before = untrained.get(batch, are_zero)
            untrained[batch] = before & are_zero if len(before) == len(are_zero) else np.zeros_like(before)
    return untrained


def _agrees_elsewhere(row: TensorRow, positions: NDArray[np.bool_], is_later: bool) -> bool:
    """Whether the samples agree within the row's limit, except at `positions`, (samples,).

    Args:
        is_later: whether an earlier output differs at such positions.
    """
    one, other = (np.array(each.samples) for each in (row.reference, row.candidate))
    if not len(one) == len(other) == len(positions) or positions.all() or math.isinf(row.difference):
        return False
    with np.errstate(invalid="ignore"):
        # Elements that are not finite on both sides have no difference.
        errors = np.nan_to_num(np.abs(other - one), nan=0.0, posinf=0.0)
    size = max(row.reference.rms, row.candidate.rms)
    is_possible = is_later or _is_attention(row) or bool(errors[positions].any())
    return is_possible and bool(np.sqrt(np.mean(errors[~positions] ** 2)) <= row.limit * size)


def _is_attention(row: TensorRow) -> bool:
    return "attn" in row.key.name or "attention" in row.key.name


def _batch_of(row: TensorRow) -> _Batch:
    return row.key.micro_batch, row.reference.vectors
