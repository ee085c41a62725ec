"""A micro-batch on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ascendtune.data.collate import Batch
from ascendtune.machine.device import Device


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """`data.collate.Batch` as tensors; shapes as there."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor | None
    cu_seqlens: tuple[int, ...] | None
    cu_seqlens_device: torch.Tensor | None
    target_index: torch.Tensor
    targets: torch.Tensor

    def model_inputs(self) -> dict[str, Any]:
        """Arguments of the decoder. `cu_seqlens*` travel through transformers to our attention function."""
        inputs: dict[str, Any] = {"input_ids": self.input_ids, "use_cache": False}
        if self.position_ids is not None:
            inputs["position_ids"] = self.position_ids
        if self.cu_seqlens is not None:
            inputs["cu_seqlens"] = self.cu_seqlens
            inputs["cu_seqlens_device"] = self.cu_seqlens_device
        return inputs


def to_device(batch: Batch, device: Device) -> DeviceBatch:
    """Copy a batch to the device, without waiting for the copy."""
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
    )
