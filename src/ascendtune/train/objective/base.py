"""The interface between the training loop and an objective, and the table of objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import nn

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.objective.head import HeadForm


class LossOutput(NamedTuple):
    """What a micro-batch came to: sums, which the loop divides by the global number of units."""

    loss: torch.Tensor
    """() fp32, with a gradient."""
    extras: dict[str, torch.Tensor]
    """Name -> () sum over units of something worth recording, without a gradient; the same names every time."""


class Objective(nn.Module, ABC):
    """A model with its loss. Strategies that divide weights gather them in `RootModule`, which calls it."""

    unit: ClassVar[Literal["token", "group"]] = "token"
    """What the loss is a mean over: labelled tokens, or rows of the data (a pair is one)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, batch: DeviceBatch) -> LossOutput:
        """The summed loss over the units of `batch`."""

    def begin(self, mismatched: Iterable[DeviceBatch], call: Callable[..., Any]) -> None:
        """Called before the micro-batches whose losses make one mean: those of a step, or of an evaluation.

        Every rank calls it, with as many batches.

        Args:
            mismatched: kto's mismatched answers to this rank's micro-batches; made as they are asked for.
            call: `call(function, batch)` is `function(batch)` with the weights gathered.
        """

    def to_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """What is recorded of the extras, from their means over units: NaN where there is nothing to take a mean of."""
        return means


Mean = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

TABLE = {
    "pretrain": "ascendtune.train.objective.sft:SupervisedObjective",
    "sft": "ascendtune.train.objective.sft:SupervisedObjective",
    "reward": "ascendtune.train.objective.reward:RewardObjective",
    "preference": "ascendtune.train.objective.preference:make_preference_objective",
}


def make_objective(model: Any, recipe: Recipe, *, head_form: HeadForm | None, mean_over_ranks: Mean) -> Objective:
    """The objective of the recipe's stage.

    Args:
        head_form: how logits follow from `head(decoder(x))`; see `head.find_head_form`.
        mean_over_ranks: from this rank's (sum, count) to the mean over all ranks.
    """
    make: Callable[..., Objective] = resolve_name(TABLE[recipe.method.stage])
    return make(model, recipe.method, head_form=head_form, mean_over_ranks=mean_over_ranks)
