"""Losses of preference learning, as functions of log-probabilities. All inputs and results: (groups,).

`chosen` and `rejected` are summed log-probabilities of an answer's tokens under the policy, `reference_*` the same
under the reference model, `*_length` the number of these tokens. A *ratio* is policy minus reference.

    sigmoid  DPO, eq. 7 of arXiv 2305.18290; with label smoothing eq. 3 of the cDPO note by E. Mitchell
    hinge    SLiC, eq. 7 of arXiv 2305.10425, on DPO's ratios
    ipo      eq. 17 of arXiv 2310.12036, on means over tokens, as its authors confirmed to TRL
    kto      eq. 8 of arXiv 2402.01306
    orpo     eq. 6 and 7 of arXiv 2403.07691, on means over tokens
    simpo    eq. 6 of arXiv 2405.14734
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from ascendtune.recipe.method import PreferenceSection
from ascendtune.train.objective.double_float import DoubleFloat

Tensor = torch.Tensor


@dataclass(frozen=True)
class Pairs:
    """Log-probabilities of pairs of answers under the policy and the reference."""

    chosen: DoubleFloat
    rejected: DoubleFloat
    chosen_length: Tensor
    rejected_length: Tensor
    reference_chosen: DoubleFloat | None = None
    reference_rejected: DoubleFloat | None = None

    @property
    def chosen_ratio(self) -> DoubleFloat:
        assert self.reference_chosen is not None
        return self.chosen.minus(self.reference_chosen)

    @property
    def rejected_ratio(self) -> DoubleFloat:
        assert self.reference_rejected is not None
        return self.rejected.minus(self.reference_rejected)

    @property
    def chosen_mean(self) -> DoubleFloat:
        return self.chosen.divided_by(self.chosen_length)

    @property
    def rejected_mean(self) -> DoubleFloat:
        return self.rejected.divided_by(self.rejected_length)


def sigmoid(pairs: Pairs, options: PreferenceSection) -> Tensor:
    logits = options.beta * pairs.chosen_ratio.minus(pairs.rejected_ratio).value
    smoothing = options.label_smoothing
    return -(1 - smoothing) * functional.logsigmoid(logits) - smoothing * functional.logsigmoid(-logits)


def hinge(pairs: Pairs, options: PreferenceSection) -> Tensor:
    return torch.relu(1 - options.beta * pairs.chosen_ratio.minus(pairs.rejected_ratio).value)


def ipo(pairs: Pairs, options: PreferenceSection) -> Tensor:
    chosen = pairs.chosen_ratio.divided_by(pairs.chosen_length)
    rejected = pairs.rejected_ratio.divided_by(pairs.rejected_length)
    return (chosen.minus(rejected).value - 1 / (2 * options.beta)) ** 2


def orpo(pairs: Pairs, options: PreferenceSection) -> Tensor:
    """Cross-entropy of the chosen answer, plus beta times the loss of the log odds ratio."""
    chosen, rejected = pairs.chosen_mean.value, pairs.rejected_mean.value
    difference = pairs.chosen_mean.minus(pairs.rejected_mean).value
    log_odds = difference - (_log1mexp(chosen) - _log1mexp(rejected))
    return -chosen - options.beta * functional.logsigmoid(log_odds)


def simpo(pairs: Pairs, options: PreferenceSection) -> Tensor:
    difference = pairs.chosen_mean.minus(pairs.rejected_mean).value
    return -functional.logsigmoid(options.beta * difference - options.simpo_gamma)


def kto(ratio: Tensor, is_desirable: Tensor, divergence: Tensor, options: PreferenceSection) -> Tensor:
    """Loss of single answers: (groups,).

    Args:
        ratio: (groups,) of each answer.
        is_desirable: (groups,) 1 for a good answer, 0 for a bad one.
        divergence: () estimate of the KL divergence from the reference; no gradient flows through it.
    """
    sign = 2 * is_desirable - 1
    weight = options.desirable_weight * is_desirable + options.undesirable_weight * (1 - is_desirable)
    # 1 - sigmoid(x) as exp(log(sigmoid(-x))): neither the value nor the gradient is a difference of numbers near 1.
    return weight * torch.exp(functional.logsigmoid(options.beta * sign * (divergence - ratio)))


PAIRED = {"sigmoid": sigmoid, "hinge": hinge, "ipo": ipo, "orpo": orpo, "simpo": simpo}


def _log1mexp(value: Tensor) -> Tensor:
    """log(1 - exp(value)) for value < 0, without losing digits near 0.

    On Ascend `expm1` and `log1p` are compiled operators of the old kind (torch_npu 2.13), so they are not used.
    """
    is_near = value > -0.1
    # The inputs of each branch are valid for it: the gradient of the unused branch must not be NaN.
    x = torch.where(is_near, value.clamp(max=-1e-7), -0.1)
    # (exp(x) - 1) / x - 1, its Taylor series: the remainder is below 2e-10.
    series = x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x / 720))))
    near = torch.log(-x) + torch.log(1 + series)
    far = torch.log(1 - torch.exp(torch.where(is_near, -1.0, value)))
    return torch.where(is_near, near, far)
