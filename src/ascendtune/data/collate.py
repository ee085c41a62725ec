"""Converts group numbers to arrays: rows one after the other without padding, or padded on the right."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ascendtune.data.plan import PackedSequence
from ascendtune.data.store import IGNORED, TokenDataset

_NOTHING = np.empty(0, np.int64)
_NO_VALUES = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch on the host.

    The target of a position is the label of the next one, so the last position of a document has none. Positions with
    targets are listed by index: the loss selects them without a device synchronisation.
    """

    input_ids: NDArray[np.int64]
    """(batch, tokens) int64; batch is 1 without padding."""
    position_ids: NDArray[np.int64] | None
    """(1, tokens) int64, starting at 0 in every document; None if padded, because they are then equal for all rows."""
    cu_seqlens: tuple[int, ...] | None
    """Begin of each document and end of the last one, without padding: (0, 3, 7) for documents of 3 and 4 tokens."""
    target_index: NDArray[np.int64]
    """(labelled,) int64: positions with a target, in the flattened (batch × tokens) order."""
    targets: NDArray[np.int64]
    """(labelled,) int64: the token ids to predict at these positions."""
    tokens: int
    """Real tokens, without padding."""
    attention_mask: NDArray[np.int64] | None = None
    """(batch, tokens) int64 when padded: 1 for tokens, 0 for padding."""
    # The fields below are set only if groups have several rows; otherwise they would cost time at every step.
    documents: int = 0
    """Rows in the batch, group by group."""
    target_document: NDArray[np.int64] = field(default_factory=lambda: _NOTHING)
    """(labelled,) int64: the document of each position with a target."""
    last_index: NDArray[np.int64] = field(default_factory=lambda: _NOTHING)
    """(documents,) int64: flattened position of each document's last token."""
    values: NDArray[np.float32] = field(default_factory=lambda: _NO_VALUES)
    """(groups,) float32: as `TokenDataset.values`."""
    rows: tuple[int, ...] = ()
    """(documents,) row numbers in the data set."""


def collate(
    dataset: TokenDataset,
    sequences: list[PackedSequence],
    *,
    padding_free: bool,
    pad_id: int,
    members: slice = slice(None),
) -> Batch:
    """Arrays for one micro-batch of at least one sequence.

    Args:
        padding_free: whether all rows follow each other, isolated from each other, whether they were packed by length
            or not; otherwise they are padded on the right.
        members: rows of each group; all of them, or `slice(0, 1)` for the first.
    """
    numbers = _row_numbers(dataset, sequences, members)
    rows = [dataset.row(number) for number in numbers]
    batch = _concatenate(rows) if padding_free else _pad(rows, pad_id)
    return batch if dataset.group_size == 1 else _in_groups(batch, dataset, sequences, numbers)


def _row_numbers(dataset: TokenDataset, sequences: list[PackedSequence], members: slice = slice(None)) -> list[int]:
    size = dataset.group_size
    if size == 1:
        return [group for sequence in sequences for group in sequence]
    return [group * size + within for sequence in sequences for group in sequence for within in range(size)[members]]


def _in_groups(batch: Batch, dataset: TokenDataset, sequences: list[PackedSequence], numbers: list[int]) -> Batch:
    """The batch, with the position of every document."""
    if batch.cu_seqlens is not None:
        ends = np.array(batch.cu_seqlens[1:])
        of_target = np.searchsorted(ends, batch.target_index, side="right")
    else:
        longest = batch.input_ids.shape[1]
        ends = dataset.lengths[numbers] + np.arange(len(numbers)) * longest
        of_target = batch.target_index // longest
    return replace(
        batch,
        documents=len(numbers),
        target_document=of_target,
        last_index=ends - 1,
        values=dataset.values[[group for sequence in sequences for group in sequence]],
        rows=tuple(numbers),
    )


Row = tuple[NDArray[np.int32], NDArray[np.int32]]


def _concatenate(rows: list[Row]) -> Batch:
    lengths = [len(ids) for ids, _ in rows]
    ends = np.cumsum(lengths)
    targets = _next_labels(np.concatenate([labels for _, labels in rows]), ends)
    index = np.flatnonzero(targets != IGNORED)
    return Batch(
        input_ids=np.concatenate([ids for ids, _ in rows]).astype(np.int64)[None],
        position_ids=(np.arange(ends[-1]) - np.repeat(ends - lengths, lengths))[None],
        cu_seqlens=(0, *ends.tolist()),
        target_index=index,
        targets=targets[index],
        tokens=int(ends[-1]),
    )


def _pad(rows: list[Row], pad_id: int) -> Batch:
    longest = max(len(ids) for ids, _ in rows)
    input_ids = np.full((len(rows), longest), pad_id, dtype=np.int64)
    targets = np.full((len(rows), longest), IGNORED, dtype=np.int64)
    mask = np.zeros_like(input_ids)
    for number, (ids, labels) in enumerate(rows):
        input_ids[number, : len(ids)] = ids
        mask[number, : len(ids)] = 1
        targets[number, : len(ids)] = _next_labels(labels, np.array([len(ids)]))
    flat = targets.reshape(-1)
    index = np.flatnonzero(flat != IGNORED)
    return Batch(input_ids, None, None, index, flat[index], int(mask.sum()), mask)


def _next_labels(labels: NDArray[np.int32], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    shifted = np.empty(len(labels), dtype=np.int64)
    shifted[:-1] = labels[1:]
    shifted[ends - 1] = IGNORED
    return shifted


def hash_of_batch(dataset: TokenDataset, sequences: list[PackedSequence]) -> str:
    """Hash, of 16 hex digits, of a global batch with its order: equal on two machines that use the same data."""
    digest = hashlib.blake2b(digest_size=8)
    for sequence in sequences:
        for number in _row_numbers(dataset, [sequence]):
            ids, labels = dataset.row(number)
            digest.update(len(ids).to_bytes(4, "little"))
            digest.update(ids.astype("<i4", copy=False).data)
            digest.update(labels.astype("<i4", copy=False).data)
        if dataset.group_size > 1:
            digest.update(dataset.values[list(sequence)].astype("<f4", copy=False).data)
        digest.update(b"|")
    return digest.hexdigest()
