"""The losses of a step in a recorded loop, as far as their gradients update the recorded model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ascendtune.train.dump.record import StepRecord


@dataclass(eq=False)
class _Loss:
    """A loss since the last update: ()."""

    value: torch.Tensor
    row: int | None
    """Its row in the record of a dumped step."""
    has_reached: bool = True
    """Whether its backward pass changed a gradient of the model."""


class StepLosses:
    """Losses since the last update of a model.

    Once an optimizer of another model has made a step, as in a GAN, a loss counts only if its backward pass changed a
    gradient of this model, and if this gradient was not set to zero before the next backward pass.

    Args:
        parameters: trained parameters of the model.
        sees_gradients: False if gradients are stored elsewhere than in `grad`; then every loss counts.
    """

    def __init__(self, parameters: Collection[nn.Parameter], *, sees_gradients: bool) -> None:
        self._parameters = parameters
        self._sees_gradients = sees_gradients
        self._has_other_model = False
        self._losses: list[_Loss] = []
        self._record: StepRecord | None = None

    def begin(self, record: StepRecord | None) -> None:
        """Begin a step; `record` is its dump."""
        self._losses, self._record = [], record

    def add(self, value: torch.Tensor) -> None:
        """Add a loss, () or (1,), whose backward pass begins."""
        row = None
        if self._record is not None:
            number = self._record.micro_batch
            row = self._record.add("loss", "", "loss", "", value.float(), micro_batch=number)
        self._losses.append(_Loss(value.reshape(()), row))

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Context of a backward pass; its losses are added inside, before it computes."""
        if not self._sees_gradients:
            yield
            return
        if self._has_other_model and self._losses and not self._has_gradients():
            self._set_aside(self._losses)
        count, before = len(self._losses), self._versions()
        yield
        has_reached = any(
            new is not old or version != old_version
            for (new, version), (old, old_version) in zip(self._versions(), before, strict=True)
        )
        for each in self._losses[count:]:
            each.has_reached = has_reached

    def note_other_model(self) -> bool:
        """Note that an optimizer of another model makes a step; return True the first time."""
        is_first, self._has_other_model = not self._has_other_model, True
        return is_first

    def total(self, wide: torch.dtype) -> float:
        """Sum of the losses that count, in `wide`; NaN without any. The others are removed from the step's dump."""
        if self._has_other_model:
            self._set_aside([each for each in self._losses if not each.has_reached])
        if not self._losses:
            return math.nan
        return float(torch.stack([each.value for each in self._losses]).to(wide).sum())

    def _set_aside(self, losses: list[_Loss]) -> None:
        for each in losses:
            if self._record is not None and each.row is not None:
                self._record.remove(each.row)
        self._losses = [each for each in self._losses if each not in losses]

    def _has_gradients(self) -> bool:
        """Whether any gradient is not zero. Waits for the device."""
        return any(grad is not None and bool(grad.any()) for grad, _ in self._versions())

    def _versions(self) -> list[tuple[torch.Tensor | None, int]]:
        """Per parameter: this rank's part of the gradient, any shape, and the number of its in-place changes."""
        with torch.no_grad():
            own = [each.grad.to_local() if isinstance(each.grad, DTensor) else each.grad for each in self._parameters]
        return [(grad, 0 if grad is None else grad._version) for grad in own]
