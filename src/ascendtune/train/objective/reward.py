"""Reward models: a score at the end of a text, which should be higher for the chosen answer."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from ascendtune.recipe.method import MethodSection
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.objective.base import LossOutput, Objective
from ascendtune.train.objective.head import hidden_states


class RewardObjective(Objective):
    """Pairwise loss of a sequence classification model with one score.

    Args:
        model: `AutoModelForSequenceClassification` with one label; `model_checks.require_one_score` has checked it.
    """

    unit = "group"

    def __init__(self, model: Any, method: MethodSection, **_: Any) -> None:
        super().__init__(model)
        self.options = method.reward

    def forward(self, batch: DeviceBatch) -> LossOutput:
        """The summed loss over the pairs."""
        assert batch.groups is not None
        ends = hidden_states(self.model, batch).index_select(0, batch.groups.last_index)
        scores = self.model.score(ends).squeeze(-1).float()
        chosen, rejected = scores[0::2], scores[1::2]
        losses = pairwise_loss(chosen, rejected, batch.groups.values, centring=self.options.centring)
        return LossOutput(losses.sum() * batch.weight, pair_metrics(chosen, rejected, batch.weight))


def pair_metrics(chosen: torch.Tensor, rejected: torch.Tensor, weight: float) -> dict[str, torch.Tensor]:
    """Sums over pairs, () fp32 each: scores, their difference, and the number of pairs whose chosen score is higher.

    Args:
        chosen, rejected: (pairs,) fp32 scores.
        weight: factor of all sums; 0 for the batch of a rank without rows.
    """
    chosen, rejected = chosen.detach(), rejected.detach()
    sums = {
        "chosen_reward": chosen.sum(),
        "rejected_reward": rejected.sum(),
        "margin": (chosen - rejected).sum(),
        "accuracy": (chosen > rejected).sum(),
    }
    return {name: value * weight for name, value in sums.items()}


def pairwise_loss(
    chosen: torch.Tensor, rejected: torch.Tensor, margin: torch.Tensor, *, centring: float
) -> torch.Tensor:
    """(pairs,) fp32: -log sigmoid(chosen - rejected - margin), plus centring × (chosen + rejected)².

    Bradley-Terry: the chosen answer should score higher (arXiv 2203.02155, eq. 1).

    Args:
        chosen, rejected, margin: (pairs,) scores, and their least desired difference (arXiv 2307.09288).
        centring: weight of the term that keeps scores near zero (arXiv 2312.09244).
    """
    loss = -functional.logsigmoid(chosen - rejected - margin)
    return loss + centring * (chosen + rejected) ** 2 if centring else loss
