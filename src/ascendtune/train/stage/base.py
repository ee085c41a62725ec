"""What the loop asks of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import nn

from ascendtune.train.batch import DeviceBatch


class Outcome(NamedTuple):
    """What a micro-batch came to: sums, which the loop divides by the global number of units."""

    loss: torch.Tensor
    """() fp32, with a gradient."""
    extras: dict[str, torch.Tensor]
    """Name -> () sum over units of something worth recording, without a gradient; the same names every time."""


class Objective(nn.Module, ABC):
    """A model with its loss; the module that strategies wrap."""

    unit: ClassVar[Literal["token", "group"]] = "token"
    """What the loss is a mean over: labelled tokens, or rows of the data (a pair is one)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, batch: DeviceBatch) -> Outcome:
        """The summed loss over the units of `batch`."""

    def begin(self, mismatched: Iterable[DeviceBatch]) -> None:
        """Called before the micro-batches whose losses make one mean: those of a step, or of an evaluation.

        Every rank calls it, with as many batches.

        Args:
            mismatched: kto's mismatched answers to this rank's micro-batches; made as they are asked for.
        """

    def recorded(self, means: dict[str, float]) -> dict[str, float]:
        """What is recorded of the extras, from their means over units: NaN where there is nothing to take a mean of."""
        return means
