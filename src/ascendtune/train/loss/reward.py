"""The loss of reward models: the chosen answer's score must be ahead (Bradley-Terry; eq. 1 of arXiv 2203.02155)."""

from __future__ import annotations

import torch
from torch.nn import functional


def pairwise(chosen: torch.Tensor, rejected: torch.Tensor, margin: torch.Tensor, *, centring: float) -> torch.Tensor:
    """(pairs,) fp32: -log sigmoid(chosen - rejected - margin), plus centring × (chosen + rejected)².

    Args:
        chosen, rejected, margin: (pairs,) scores, and by how much they should differ at least (arXiv 2307.09288).
        centring: weight that holds scores around zero (arXiv 2312.09244).
    """
    loss = -functional.logsigmoid(chosen - rejected - margin)
    return loss + centring * (chosen + rejected) ** 2 if centring else loss
