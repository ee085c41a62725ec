"""Reward models: a score at the end of a text, higher for the chosen answer."""

from __future__ import annotations

from typing import Any

import torch

from ascendtune.train.batch import DeviceBatch
from ascendtune.train.loss.reward import pairwise
from ascendtune.train.method import MethodSection, RewardSection
from ascendtune.train.stage.base import Objective, Outcome
from ascendtune.train.stage.decoder import hidden_states


def scoring(model: Any, method: MethodSection, **_: Any) -> Objective:
    return RewardObjective(model, method.reward)


class RewardObjective(Objective):
    """Pairwise loss of a sequence classification model with one score.

    Args:
        model: `AutoModelForSequenceClassification` with one label; `guard.scores_last_token` has looked at it.
    """

    unit = "group"

    def __init__(self, model: Any, options: RewardSection) -> None:
        super().__init__(model)
        self.options = options

    def forward(self, batch: DeviceBatch) -> Outcome:
        """The summed loss over the pairs."""
        assert batch.groups is not None
        ends = hidden_states(self.model, batch).index_select(0, batch.groups.last_index)
        scores = self.model.score(ends).squeeze(-1).float()
        chosen, rejected = scores[0::2], scores[1::2]
        losses = pairwise(chosen, rejected, batch.groups.values, centring=self.options.centring)
        return Outcome(losses.sum() * batch.weight, extras_of_pairs(chosen, rejected, batch.weight))


def extras_of_pairs(chosen: torch.Tensor, rejected: torch.Tensor, weight: float) -> dict[str, torch.Tensor]:
    """Sums over pairs of the scores, how far they are apart, and how often the right one is ahead."""
    chosen, rejected = chosen.detach(), rejected.detach()
    sums = {
        "chosen_reward": chosen.sum(),
        "rejected_reward": rejected.sum(),
        "margin": (chosen - rejected).sum(),
        "accuracy": (chosen > rejected).sum(),
    }
    return {name: value * weight for name, value in sums.items()}
