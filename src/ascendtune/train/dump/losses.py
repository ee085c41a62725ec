"""The losses of a step in a recorded loop: those whose gradients the update of the recorded model uses."""

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
class _Noted:
    """A loss since the last update: ()."""

    value: torch.Tensor
    row: int | None
    """In the record of a step that is dumped."""
    has_reached: bool = True
    """Whether its backward pass changed a gradient of the model."""


class StepLosses:
    """Losses since the last update of a model.

    Once an optimizer of another model has made a step, as in a GAN, a loss counts only if its backward pass changed a
    gradient of this model, and if that gradient was not set to zero before the next backward pass.

    Args:
        parameters: of the model, trained ones.
        sees_gradients: False where they are kept elsewhere than in `grad`; then each loss counts.
    """

    def __init__(self, parameters: Collection[nn.Parameter], *, sees_gradients: bool) -> None:
        self._parameters = parameters
        self._sees_gradients = sees_gradients
        self._has_other_model = False
        self._noted: list[_Noted] = []
        self._record: StepRecord | None = None

    def begin(self, record: StepRecord | None) -> None:
        """A step begins; `record` is its dump."""
        self._noted, self._record = [], record

    def add(self, value: torch.Tensor) -> None:
        """A loss, () or (1,), whose backward pass begins."""
        row = None
        if self._record is not None:
            number = self._record.micro_batch
            row = self._record.add("loss", "", "loss", "", value.float(), micro_batch=number)
        self._noted.append(_Noted(value.reshape(()), row))

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Context of the backward pass of losses that are added in it, before it computes."""
        if not self._sees_gradients:
            yield
            return
        if self._has_other_model and self._noted and not self._has_gradients():
            self._set_aside(self._noted)
        known, before = len(self._noted), self._versions()
        yield
        has_reached = any(
            new is not old or version != old_version
            for (new, version), (old, old_version) in zip(self._versions(), before, strict=True)
        )
        for each in self._noted[known:]:
            each.has_reached = has_reached

    def note_other_model(self) -> bool:
        """An optimizer of another model makes a step; True the first time."""
        is_first, self._has_other_model = not self._has_other_model, True
        return is_first

    def total(self, wide: torch.dtype) -> float:
        """The sum of the losses of the step, in `wide`; NaN without a loss. Others are taken from its dump."""
        if self._has_other_model:
            self._set_aside([each for each in self._noted if not each.has_reached])
        if not self._noted:
            return math.nan
        return float(torch.stack([each.value for each in self._noted]).to(wide).sum())

    def _set_aside(self, losses: list[_Noted]) -> None:
        for each in losses:
            if self._record is not None and each.row is not None:
                self._record.remove(each.row)
        self._noted = [each for each in self._noted if each not in losses]

    def _has_gradients(self) -> bool:
        """Waits for the device."""
        return any(grad is not None and bool(grad.any()) for grad, _ in self._versions())

    def _versions(self) -> list[tuple[torch.Tensor | None, int]]:
        """Of each parameter the gradient, as this rank holds it, any shape, and how often it was changed in place."""
        with torch.no_grad():
            own = [each.grad.to_local() if isinstance(each.grad, DTensor) else each.grad for each in self._parameters]
        return [(grad, 0 if grad is None else grad._version) for grad in own]
