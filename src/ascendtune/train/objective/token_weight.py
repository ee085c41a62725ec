"""Weight of each labelled position in the loss: variants multiply its cross-entropy by a weight without gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ascendtune.recipe.method import SftSection

TokenWeight = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps logits (positions, vocabulary) fp32, in which each position may be shifted by a constant, and cross-entropies
(positions,) fp32 to weights (positions,) fp32."""

_ENTROPY_OF = 20


def dft_weight(_: torch.Tensor, cross_entropy: torch.Tensor) -> torch.Tensor:
    """The target's probability, (positions,): dynamic fine-tuning, Wu et al. 2025, arXiv:2508.05629, -sg(p) log p.

    It is also the first term of anchored supervised fine-tuning (ASFT), Zhu et al. 2025, arXiv:2509.23753.
    """
    return torch.exp(-cross_entropy)


def eaft_weight(alpha: float) -> TokenWeight:
    """(H / ln K)^alpha, H the entropy among the K = 20 likeliest tokens: Diao et al. 2026, arXiv:2601.02151.

    If the vocabulary is smaller, K is its size.
    """

    def weight(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        count = min(_ENTROPY_OF, logits.shape[-1])
        log_probs = torch.log_softmax(torch.topk(logits, count, dim=-1).values, dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        # Rounding may leave a small negative number, whose power is NaN.
        share: torch.Tensor = (entropy / math.log(count)).clamp(0, 1) ** alpha
        return share

    return weight


def token_weight(section: SftSection) -> TokenWeight | None:
    """The weights of a recipe's loss; None if every position has the same weight."""
    match section.loss:
        case "cross_entropy":
            return None
        case "dft" | "asft":
            return dft_weight
        case "eaft":
            return eaft_weight(section.eaft_alpha)
