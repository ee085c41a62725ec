"""Learning from preferences: DPO and its relatives, and KTO."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from ascendtune.train.batch import DeviceBatch
from ascendtune.train.loss.log_probs import linear_log_probs
from ascendtune.train.loss.preference import PAIRED, Pairs, kto
from ascendtune.train.method import MethodSection, PreferenceSection
from ascendtune.train.stage.base import Objective, Outcome
from ascendtune.train.stage.decoder import labelled_logits, labelled_states
from ascendtune.train.stage.reward import extras_of_pairs


def preferring(
    model: Any,
    method: MethodSection,
    *,
    plain_head: bool,
    mean_over_ranks: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Objective:
    options = method.preference
    if options.loss == "kto":
        return SinglesObjective(model, options, plain_head=plain_head, mean_over_ranks=mean_over_ranks)
    return PairedObjective(model, options, plain_head=plain_head)


class PreferenceObjective(Objective):
    """What paired and single answers have in common."""

    unit = "group"

    def __init__(self, model: Any, options: PreferenceSection, *, plain_head: bool) -> None:
        super().__init__(model)
        self.options = options
        self.plain_head = plain_head

    def forward(self, batch: DeviceBatch, *, only_log_probs: bool = False) -> Outcome | torch.Tensor:  # type: ignore[override]
        """The summed loss over the groups; or, for a reference, (documents,) summed log-probabilities alone."""
        # One entry for both: strategies that divide the weights gather them when the module itself is called.
        return self.log_probs(batch) if only_log_probs else self.outcome(batch)

    def log_probs(self, batch: DeviceBatch) -> torch.Tensor:
        """(documents,) fp32: summed log-probability of every document's labelled tokens."""
        assert batch.groups is not None
        if self.plain_head:
            head = self.model.get_output_embeddings()
            per_token = linear_log_probs(labelled_states(self.model, batch), head, batch.targets)
        else:
            logits = labelled_logits(self.model, batch).log_softmax(-1)
            per_token = logits.gather(1, batch.targets[:, None]).squeeze(1)
        sums = per_token.new_zeros(batch.groups.documents)
        return sums.index_add(0, batch.groups.target_document, per_token)

    @abstractmethod
    def outcome(self, batch: DeviceBatch) -> Outcome:
        """The summed loss over the groups of `batch`."""


class PairedObjective(PreferenceObjective):
    """sigmoid (DPO), hinge, ipo, orpo, simpo: chosen and rejected go through the model together.

    Args:
        model: a transformers causal language model, adapters inside it or not.
        plain_head: as for `SupervisedObjective`.
    """

    def outcome(self, batch: DeviceBatch) -> Outcome:
        groups = batch.groups
        assert groups is not None
        sums, lengths, reference = self.log_probs(batch), groups.label_counts, groups.reference
        pairs = Pairs(
            sums[0::2], sums[1::2], lengths[0::2], lengths[1::2],
            *((reference[0::2], reference[1::2]) if reference is not None else ()),
        )  # fmt: skip
        losses = PAIRED[self.options.loss](pairs, self.options)
        if self.options.sft_weight:
            losses = losses - self.options.sft_weight * pairs.chosen_mean
        if reference is not None:
            rewards = self.options.beta * pairs.chosen_ratio, self.options.beta * pairs.rejected_ratio
        else:
            rewards = self.options.beta * pairs.chosen_mean, self.options.beta * pairs.rejected_mean
        return Outcome(losses.sum() * batch.weight, extras_of_pairs(*rewards, batch.weight))


class SinglesObjective(PreferenceObjective):
    """kto: answers marked good or bad, with a mismatched answer each for the divergence from the reference.

    Args:
        mean_over_ranks: from this rank's (sum, count) to the mean over all ranks, () without a gradient.
    """

    def __init__(
        self,
        model: Any,
        options: PreferenceSection,
        *,
        plain_head: bool,
        mean_over_ranks: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__(model, options, plain_head=plain_head)
        self._mean_over_ranks = mean_over_ranks

    def outcome(self, batch: DeviceBatch) -> Outcome:
        assert batch.groups is not None and batch.mismatched is not None
        with torch.no_grad():
            drift = self._ratio(batch.mismatched, self.log_probs(batch.mismatched))
            count = drift.new_full((), len(drift))
            divergence = self._mean_over_ranks(drift.sum() * batch.weight, count * batch.weight).clamp(min=0)
        sums, good = self.log_probs(batch), batch.groups.values
        ratio = self._ratio(batch, sums)
        losses = kto(ratio, good, divergence, self.options)
        if self.options.sft_weight:
            losses = losses - self.options.sft_weight * good * sums / batch.groups.label_counts
        rewards = (self.options.beta * ratio).detach()
        extras = {
            "good": good.sum(),
            "chosen_reward": (rewards * good).sum(),
            "rejected_reward": (rewards * (1 - good)).sum(),
            "kl": divergence * len(drift),
        }
        return Outcome(losses.sum() * batch.weight, {name: value * batch.weight for name, value in extras.items()})

    def recorded(self, means: dict[str, float]) -> dict[str, float]:
        """Rewards as means over the rows of their own kind, as TRL's, and how far they are apart."""
        # Nothing is known where all steps were left out.
        good = means.get("good", math.nan)
        chosen = means["chosen_reward"] / good if good > 0 else math.nan
        rejected = means["rejected_reward"] / (1 - good) if good < 1 else math.nan
        return {
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "margin": chosen - rejected,
            "kl": means.get("kl", math.nan),
        }

    def _ratio(self, batch: DeviceBatch, sums: torch.Tensor) -> torch.Tensor:
        assert batch.groups is not None and batch.groups.reference is not None
        return sums - batch.groups.reference
