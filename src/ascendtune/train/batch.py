"""Micro-batches on the device: the rows that each rank computes, and their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ascendtune.data.collate import Batch, collate
from ascendtune.data.plan import BatchPlan, PackedSequence, micro_batches_of_rank
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
    """(labelled,) int64: index of each labelled position in a flattened (documents, `most_labels`) table."""
    most_labels: int
    """Labelled positions of the document that has the most."""
    label_counts: torch.Tensor
    """(documents,) fp32: labelled positions of each document."""
    last_index: torch.Tensor
    """(documents,) int64: flattened position of each document's last token."""
    values: torch.Tensor
    """(groups,) fp32: the margin of a pair; 1 for a desirable single answer, 0 for an undesirable one."""
    reference: DoubleFloat | None = None
    """(documents,): summed log-probabilities under the reference model."""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """`data.collate.Batch` as tensors, with the same shapes."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor | None
    cu_seqlens: tuple[int, ...] | None
    cu_seqlens_device: torch.Tensor | None
    target_index: torch.Tensor
    targets: torch.Tensor
    groups: AnswerGroups | None = None
    attention_mask: torch.Tensor | None = None
    """(batch, tokens) int64, 0 for padding: for models that make their own attention masks."""
    rows: tuple[int, ...] = ()
    """(documents,) numbers of the rows in the data set, for losses over whole answers."""
    weight: float = 1.0
    """0 for the batch of a rank that has no rows but must take part in the collectives."""
    is_last: bool = True
    """Whether this is the last micro-batch of this rank in the step."""

    def model_inputs(self) -> dict[str, Any]:
        """Arguments of the decoder. transformers passes `cu_seqlens*` on to the attention function."""
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
        masked: include the attention mask, which marks padding.
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
    """The same batch with weight 0: it takes part in the collectives and its gradient is zero."""
    if batch.groups is not None:
        return replace(batch, weight=0.0)
    nothing = batch.targets[:0]
    return replace(batch, target_index=nothing, targets=nothing, weight=0.0)


@dataclass(frozen=True)
class Batches:
    """The micro-batches of a data set that this rank computes."""

    dataset: TokenDataset
    plan: BatchPlan
    """The rows of each step."""
    strategy: Strategy
    per_device: int
    """Sequences of a micro-batch."""
    padding_free: bool
    """Whether the rows of a micro-batch are concatenated and isolated from each other; otherwise they are padded."""
    pad_id: int
    masked: bool = False
    """Whether the model gets an attention mask, which marks padding."""
    mismatched: bool = False
    """Whether each group is an answer and a mismatched one, which goes into a batch of its own (kto)."""
    reference: NDArray[np.float64] | None = None
    """(rows,) log-probabilities under the reference model, for losses that compare with them."""

    def of_step(
        self, step: int, *, context: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[list[PackedSequence], Iterator[DeviceBatch]]:
        """The global batch of `step`, counted from 0, and the micro-batches of it that this rank computes.

        Args:
            context: returns the context in which each micro-batch is made.
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
        """The micro-batches of a global batch that this rank computes; their number is the same on every rank.

        A rank without rows must still take part in the collectives: it gets a `dummy_batch`.

        Args:
            mismatched: make batches of kto's mismatched answers instead of the rows; none if the data set has none.
            context: returns the context in which each micro-batch is made.
        """
        if mismatched and not self.mismatched:
            return
        of_rank = micro_batches_of_rank(
            sequences, rank=self.strategy.rank, world_size=self.strategy.world_size, per_device=self.per_device
        )
        for number, own in enumerate(of_rank, 1):
            with context():
                batch = self.make(own or sequences[:1], mismatched=mismatched)
                batch = replace(batch if own else dummy_batch(batch), is_last=number == len(of_rank))
            yield batch

    def make(self, sequences: list[PackedSequence], *, mismatched: bool = False) -> DeviceBatch:
        """One micro-batch of the rows in `sequences`, or of kto's mismatched answers to their prompts."""
        members = slice(int(mismatched), int(mismatched) + 1) if self.mismatched else slice(None)
        host = collate(self.dataset, sequences, padding_free=self.padding_free, pad_id=self.pad_id, members=members)
        return to_device(host, self.strategy.device, self.reference, masked=self.masked)
