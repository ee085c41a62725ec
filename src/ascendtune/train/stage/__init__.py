"""What is learnt? One objective per stage; each is a module that turns a micro-batch into a summed loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascendtune.core.table import load
from ascendtune.train.loss.head import HeadForm
from ascendtune.train.recipe import Recipe
from ascendtune.train.stage.base import Objective

Mean = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

TABLE = {
    "pretrain": "ascendtune.train.stage.sft:supervised",
    "sft": "ascendtune.train.stage.sft:supervised",
    "reward": "ascendtune.train.stage.reward:scoring",
    "preference": "ascendtune.train.stage.preference:preferring",
}


def make_objective(model: Any, recipe: Recipe, *, head_form: HeadForm | None, mean_over_ranks: Mean) -> Objective:
    """The objective of the recipe's stage.

    Args:
        head_form: how logits follow from `head(decoder(x))`; see `head_probe.head_form`.
        mean_over_ranks: from this rank's (sum, count) to the mean over all ranks.
    """
    make: Callable[..., Objective] = load(TABLE, recipe.method.stage)
    return make(model, recipe.method, head_form=head_form, mean_over_ranks=mean_over_ranks)
