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
    """The sums of a micro-batch, which the loop divides by the global number of units."""

    loss: torch.Tensor
    """() fp32, with a gradient."""
    extras: dict[str, torch.Tensor]
    """Name -> () sum over units of a value to record, without a gradient; the same names in every micro-batch."""


class Objective(nn.Module, ABC):
    """A model with its loss. Strategies that shard weights gather them in `RootModule`, which calls the objective."""

    unit: ClassVar[Literal["token", "group"]] = "token"
    """The unit over which the loss is averaged: labelled tokens, or rows of the data (a pair is one)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, batch: DeviceBatch) -> LossOutput:
        """The summed loss over the units of `batch`."""

    def begin(self, mismatched: Iterable[DeviceBatch], call: Callable[..., Any]) -> None:
        """Prepare for the micro-batches of one mean: those of a step, or of an evaluation.

        Every rank calls this, with the same number of batches.

        Args:
            mismatched: kto's mismatched answers to this rank's micro-batches; made during the iteration.
            call: `call(function, batch)` returns `function(batch)` with the weights gathered.
        """

    def to_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """The extras to record, from their means over units; NaN if there is nothing to average."""
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
        head_form: form of the logits as a function of `head(decoder(x))`; see `head.find_head_form`.
        mean_over_ranks: computes the mean over all ranks from this rank's (sum, count).
    """
    make: Callable[..., Objective] = resolve_name(TABLE[recipe.method.stage])
    return make(model, recipe.method, head_form=head_form, mean_over_ranks=mean_over_ranks)
