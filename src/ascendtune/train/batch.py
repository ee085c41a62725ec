"""A micro-batch on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ascendtune.data.collate import Batch, collate
from ascendtune.data.plan import Sequence_
from ascendtune.data.store import TokenDataset
from ascendtune.machine.device import Device


@dataclass(frozen=True, slots=True)
class Groups:
    """What is known of the documents of a micro-batch, where a loss looks at whole answers (pairs, singles)."""

    documents: int
    """How many: two for each pair (2i chosen, 2i + 1 rejected), one for each single answer."""
    target_document: torch.Tensor
    """(labelled,) int64: the document of each labelled position."""
    label_counts: torch.Tensor
    """(documents,) fp32: labelled positions of each."""
    last_index: torch.Tensor
    """(documents,) int64: flattened position of each one's last token."""
    values: torch.Tensor
    """(groups,) fp32: the margin of a pair; 1 for a desirable single answer, 0 for an undesirable one."""
    reference: torch.Tensor | None = None
    """(documents,) fp32: summed log-probabilities under the reference model."""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """`data.collate.Batch` as tensors; shapes as there."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor | None
    cu_seqlens: tuple[int, ...] | None
    cu_seqlens_device: torch.Tensor | None
    target_index: torch.Tensor
    targets: torch.Tensor
    groups: Groups | None = None
    mismatched: DeviceBatch | None = None
    """kto: the same prompts with answers of other rows."""
    weight: float = 1.0
    """0 for the batch of a rank that has no work but must take part in the collectives."""

    def model_inputs(self) -> dict[str, Any]:
        """Arguments of the decoder. `cu_seqlens*` travel through transformers to our attention function."""
        inputs: dict[str, Any] = {"input_ids": self.input_ids, "use_cache": False}
        if self.position_ids is not None:
            inputs["position_ids"] = self.position_ids
        if self.cu_seqlens is not None:
            inputs["cu_seqlens"] = self.cu_seqlens
            inputs["cu_seqlens_device"] = self.cu_seqlens_device
        return inputs


def to_device(batch: Batch, device: Device, reference: NDArray[np.float32] | None = None) -> DeviceBatch:
    """Copy a batch to the device, without waiting for the copy.

    Args:
        reference: (rows,) of the whole data set.
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
    )


def _groups(
    batch: Batch, move: Callable[[NDArray[Any]], torch.Tensor], reference: NDArray[np.float32] | None
) -> Groups:
    return Groups(
        documents=batch.documents,
        target_document=move(batch.target_document),
        label_counts=move(np.bincount(batch.target_document, minlength=batch.documents).astype(np.float32)),
        last_index=move(batch.last_index),
        values=move(batch.values),
        reference=move(reference[list(batch.rows)]) if reference is not None else None,
    )


def idle(batch: DeviceBatch) -> DeviceBatch:
    """The same batch, teaching nothing."""
    if batch.groups is not None:
        return replace(batch, weight=0.0)
    nothing = batch.targets[:0]
    return replace(batch, target_index=nothing, targets=nothing, weight=0.0)


class BatchMaker:
    """Makes micro-batches on the device from sequences of a data set.

    Args:
        packed: padding-free, documents isolated; else padded.
        reference: (rows,) fp32 log-probabilities under the reference model, for losses that want them.
        mismatched: groups hold an answer and a mismatched one, which goes into a batch of its own (kto).
    """

    def __init__(
        self,
        dataset: TokenDataset,
        device: Device,
        *,
        packed: bool,
        pad_id: int,
        reference: NDArray[np.float32] | None = None,
        mismatched: bool = False,
    ) -> None:
        self._dataset = dataset
        self._device = device
        self._packed = packed
        self._pad_id = pad_id
        self._mismatched = mismatched
        self.reference = reference

    def make(self, sequences: list[Sequence_]) -> DeviceBatch:
        (_, batch), *others = self.parts(sequences)
        return replace(batch, mismatched=others[0][1]) if others else batch

    def parts(self, sequences: list[Sequence_]) -> list[tuple[tuple[int, ...], DeviceBatch]]:
        """(row numbers, batch) of each forward pass that a micro-batch takes: one, or two with mismatched answers."""
        members = (slice(0, 1), slice(1, 2)) if self._mismatched else (slice(None),)
        hosts = [
            collate(self._dataset, sequences, packed=self._packed, pad_id=self._pad_id, members=each)
            for each in members
        ]
        return [(host.rows, to_device(host, self._device, self.reference)) for host in hosts]
