"""Micro-batches on the device: which rows each rank computes, and the tensors of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ascendtune.data.collate import Batch, collate
from ascendtune.data.plan import BatchPlan, PackedSequence, share_of_rank
from ascendtune.data.store import TokenDataset
from ascendtune.machine.torch_backend.device import Device
from ascendtune.train.objective.double_float import DoubleFloat
from ascendtune.train.strategy.base import Strategy


@dataclass(frozen=True, slots=True)
class AnswerGroups:
    """The documents of a micro-batch, for losses over whole answers (pairs, singles)."""

    documents: int
    """Two for each pair (2i chosen, 2i + 1 rejected), one for each single answer."""
    target_slot: torch.Tensor
    """(labelled,) int64: where each labelled position goes in a flattened table, (documents, most labels of one)."""
    most_labels: int
    """Labelled positions of the document that has most."""
    label_counts: torch.Tensor
    """(documents,) fp32: labelled positions of each."""
    last_index: torch.Tensor
    """(documents,) int64: flattened position of each one's last token."""
    values: torch.Tensor
    """(groups,) fp32: the margin of a pair; 1 for a desirable single answer, 0 for an undesirable one."""
    reference: DoubleFloat | None = None
    """(documents,): summed log-probabilities under the reference model."""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """`data.collate.Batch` as tensors; shapes as there."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor | None
    cu_seqlens: tuple[int, ...] | None
    cu_seqlens_device: torch.Tensor | None
    target_index: torch.Tensor
    targets: torch.Tensor
    groups: AnswerGroups | None = None
    attention_mask: torch.Tensor | None = None
    """(batch, tokens) int64, 0 for padding: for models that make their masks themselves."""
    rows: tuple[int, ...] = ()
    """(documents,) numbers of the rows in the data set, for losses over whole answers."""
    weight: float = 1.0
    """0 for the batch of a rank that has no work but must take part in the collectives."""
    is_last: bool = True
    """Whether no other micro-batch of this rank follows in the step."""

    def model_inputs(self) -> dict[str, Any]:
        """Arguments of the decoder. `cu_seqlens*` pass through transformers to the attention function."""
        inputs: dict[str, Any] = {"input_ids": self.input_ids, "use_cache": False}
        if self.position_ids is not None:
            inputs["position_ids"] = self.position_ids
        if self.cu_seqlens is not None:
            inputs["cu_seqlens"] = self.cu_seqlens
            inputs["cu_seqlens_device"] = self.cu_seqlens_device
        if self.attention_mask is not None:
            inputs["attention_mask"] = self.attention_mask
        return inputs


def to_device(
    batch: Batch, device: Device, reference: NDArray[np.float64] | None = None, *, masked: bool = False
) -> DeviceBatch:
    """Copy a batch to the device, without waiting for the copy.

    Args:
        reference: (rows,) of the whole data set.
        masked: the model gets a mask of the padding.
    """
    target = device.torch_device
    on_host = device.shares_host_memory

    def move(array: np.ndarray[Any, Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if on_host else tensor.pin_memory().to(target, non_blocking=True)

    ends = batch.cu_seqlens
    return DeviceBatch(
        input_ids=move(batch.input_ids),
        position_ids=move(batch.position_ids) if batch.position_ids is not None else None,
        cu_seqlens=ends,
        cu_seqlens_device=move(np.asarray(ends, dtype=np.int32)) if ends is not None and not on_host else None,
        target_index=move(batch.target_index),
        targets=move(batch.targets),
        groups=_groups(batch, move, reference) if batch.documents else None,
        attention_mask=move(batch.attention_mask) if masked and batch.attention_mask is not None else None,
        rows=batch.rows,
    )


def _groups(
    batch: Batch, move: Callable[[NDArray[Any]], torch.Tensor], reference: NDArray[np.float64] | None
) -> AnswerGroups:
    counts = np.bincount(batch.target_document, minlength=batch.documents)
    most = int(counts.max())
    # Positions come document by document.
    nth = np.arange(len(batch.target_document)) - (np.cumsum(counts) - counts)[batch.target_document]
    return AnswerGroups(
        documents=batch.documents,
        target_slot=move(batch.target_document * most + nth),
        most_labels=most,
        label_counts=move(counts.astype(np.float32)),
        last_index=move(batch.last_index),
        values=move(batch.values),
        reference=_as_double_float(reference[list(batch.rows)], move) if reference is not None else None,
    )


def _as_double_float(values: NDArray[np.float64], move: Callable[[NDArray[Any]], torch.Tensor]) -> DoubleFloat:
    high = values.astype(np.float32)
    return DoubleFloat(move(high), move((values - high).astype(np.float32)))


def dummy_batch(batch: DeviceBatch) -> DeviceBatch:
    """The same batch without weight: it takes part in collectives and its gradient is zero."""
    if batch.groups is not None:
        return replace(batch, weight=0.0)
    nothing = batch.targets[:0]
    return replace(batch, target_index=nothing, targets=nothing, weight=0.0)


@dataclass(frozen=True)
class Batches:
    """The micro-batches that this rank computes of a data set."""

    dataset: TokenDataset
    plan: BatchPlan
    """Which rows make which step."""
    strategy: Strategy
    per_device: int
    """Sequences of a micro-batch."""
    padding_free: bool
    """The rows of a micro-batch follow each other, isolated; else they are padded."""
    pad_id: int
    masked: bool = False
    """The model gets a mask of the padding."""
    mismatched: bool = False
    """Groups hold an answer and a mismatched one, which goes into a batch of its own (kto)."""
    reference: NDArray[np.float64] | None = None
    """(rows,) log-probabilities under the reference model, for losses that compare with them."""

    def of_step(
        self, step: int, *, context: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[list[PackedSequence], Iterator[DeviceBatch]]:
        """The global batch of `step`, counted from 0, and the micro-batches that this rank computes of it.

        Args:
            context: makes the context in which each micro-batch is made.
        """
        sequences = self.plan.batch(step)
        return sequences, self.micro_batches(sequences, context=context)

    def micro_batches(
        self,
        sequences: list[PackedSequence],
        *,
        mismatched: bool = False,
        context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Iterator[DeviceBatch]:
        """The micro-batches that this rank computes of a global batch, as many on every rank.

        A rank without work must still take part in the collectives: it gets `dummy_batch`.

        Args:
            mismatched: kto's mismatched answers instead of the rows themselves; none where there are none.
            context: makes the context in which each micro-batch is made.
        """
        if mismatched and not self.mismatched:
            return
        shares = share_of_rank(
            sequences, rank=self.strategy.rank, world_size=self.strategy.world_size, per_device=self.per_device
        )
        for number, share in enumerate(shares, 1):
            with context():
                batch = self.make(share or sequences[:1], mismatched=mismatched)
                batch = replace(batch if share else dummy_batch(batch), is_last=number == len(shares))
            yield batch

    def make(self, sequences: list[PackedSequence], *, mismatched: bool = False) -> DeviceBatch:
        """One micro-batch of the rows in `sequences`, or of kto's mismatched answers to their prompts."""
        members = slice(int(mismatched), int(mismatched) + 1) if self.mismatched else slice(None)
        host = collate(self.dataset, sequences, padding_free=self.padding_free, pad_id=self.pad_id, members=members)
        return to_device(host, self.strategy.device, self.reference, masked=self.masked)
