"""The token ids of every step of a recorded loop as one hash, and the number format in which the loop computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ascendtune.train.dump.checksum import token_checksum
from ascendtune.train.dump.hooks import is_in_backward
from ascendtune.train.dump.record import tensors_in

_BITS = 16
_PARTS = 3
"""A hash is sent as this many numbers of `_BITS` bits, which fp32 represents exactly."""
_BATCH = 2
"""Number of dimensions of a batch of token ids."""
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""From the coarsest."""


class StepInputs:
    """Watches forward passes with gradients of `model`, as the loop calls it.

    The hash is a sum over the tokens: it does not depend on the order of the rows, on ranks, micro-batches or packing,
    nor on padding with 0 or that `attention_mask` marks.
    """

    def __init__(self, model: nn.Module) -> None:
        self._ids: torch.Tensor | None = None
        """(rows, tokens) integers of the current forward pass."""
        self._sums: list[torch.Tensor] = []
        """() int64 per forward pass of the step."""
        self._dtypes: set[torch.dtype] = set()
        self._handles = [model.register_forward_hook(self._end_forward, with_kwargs=True)]
        embeddings = [each for each in model.modules() if isinstance(each, nn.Embedding)]
        # Position embeddings have fewer rows.
        most = max((each.num_embeddings for each in embeddings), default=0)
        for each in embeddings:
            if each.num_embeddings == most:
                self._handles.append(each.register_forward_hook(self._note_ids, with_kwargs=True))
        self._of_dtypes: list[RemovableHandle] = [
            each.register_forward_hook(self._note_dtype)
            for each in model.modules()
            if any(weight.ndim > 1 for weight in each.parameters(recurse=False)) and each not in embeddings
        ]

    def remove(self) -> None:
        for handle in (*self._handles, *self._of_dtypes):
            handle.remove()

    @property
    def precision(self) -> str | None:
        """The coarsest dtype of the outputs of matrix products so far: bf16, fp16 or fp32; None without any."""
        return next((name for dtype, name in _NAMES.items() if dtype in self._dtypes), None)

    def end_step(self) -> list[float]:
        """The parts of this rank's hash of the step, for `hash_of_parts`; empty without token ids."""
        for handle in self._of_dtypes:
            handle.remove()
        self._of_dtypes = []
        if not self._sums:
            return [0.0] * (_PARTS + 1)
        total, self._sums = int(torch.stack(self._sums).sum()), []
        return [1.0, *(float(total >> _BITS * at & (1 << _BITS) - 1) for at in range(_PARTS))]

    def _note_dtype(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self._dtypes |= {tensor.dtype for _, tensor in tensors_in(output, "output")}

    def _note_ids(self, _module: nn.Module, inputs: Any, named: Mapping[str, Any], _output: Any) -> None:
        if self._ids is None and torch.is_grad_enabled() and not is_in_backward():
            found = (ids for _, ids in tensors_in((inputs, named), "input"))
            self._ids = next((ids.detach() for ids in found if ids.ndim == _BATCH), None)

    def _end_forward(self, _module: nn.Module, _inputs: Any, named: Mapping[str, Any], _output: Any) -> None:
        ids, self._ids = self._ids, None
        if ids is None:
            return
        mask = named.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
            # Not by an index, which would wait for the device.
            ids = ids * (mask != 0)
        self._sums.append(token_checksum(ids))


def hash_of_parts(of_ranks: Sequence[Sequence[float]]) -> str | None:
    """The hash of a step from the results of `end_step` on all ranks; None without token ids."""
    if not any(has_ids for has_ids, *_ in of_ranks):
        return None
    sums = [sum(int(part) for part in parts) for parts in zip(*(parts for _, *parts in of_ranks), strict=True)]
    total = sum(each << _BITS * at for at, each in enumerate(sums)) % (1 << _BITS * _PARTS)
    return f"tokens-{total:012x}"
