"""Learning from preferences: DPO and its relatives, and KTO."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ascendtune.recipe.method import MethodSection, PreferenceSection
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.objective.base import LossOutput, Objective
from ascendtune.train.objective.double_float import DoubleFloat, row_sums
from ascendtune.train.objective.head import HeadForm, labelled_logits, labelled_states
from ascendtune.train.objective.log_probs import linear_log_probs
from ascendtune.train.objective.preference_loss import PAIRED, Pairs, kto
from ascendtune.train.objective.reward import pair_metrics


def make_preference_objective(
    model: Any,
    method: MethodSection,
    *,
    head_form: HeadForm | None,
    mean_over_ranks: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Objective:
    options = method.preference
    if options.loss == "kto":
        return KtoObjective(model, options, head_form=head_form, mean_over_ranks=mean_over_ranks)
    return PairedObjective(model, options, head_form=head_form)


class PreferenceObjective(Objective):
    """Base class of the objectives for paired and single answers."""

    unit = "group"

    def __init__(self, model: Any, options: PreferenceSection, *, head_form: HeadForm | None) -> None:
        super().__init__(model)
        self.options = options
        self.head_form = head_form

    def log_probs(self, batch: DeviceBatch) -> DoubleFloat:
        """Summed log-probability of each document's labelled tokens: (documents,)."""
        groups = batch.groups
        assert groups is not None
        if self.head_form is not None:
            head = self.model.get_output_embeddings()
            per_token = linear_log_probs(labelled_states(self.model, batch), head, batch.targets, self.head_form)
        else:
            logits = labelled_logits(self.model, batch).log_softmax(-1)
            per_token = logits.gather(1, batch.targets[:, None]).squeeze(1)
        table = per_token.new_zeros(groups.documents * groups.most_labels).index_add(0, groups.target_slot, per_token)
        return row_sums(table.view(groups.documents, groups.most_labels))


class PairedObjective(PreferenceObjective):
    """sigmoid (DPO), hinge, ipo, orpo, simpo: chosen and rejected go through the model together.

    Args:
        model: a transformers causal language model, with or without adapters inside.
        head_form: as in `SupervisedObjective`.
    """

    def forward(self, batch: DeviceBatch) -> LossOutput:
        groups = batch.groups
        assert groups is not None
        sums, lengths, reference = self.log_probs(batch), groups.label_counts, groups.reference
        even, odd = slice(0, None, 2), slice(1, None, 2)
        pairs = Pairs(
            sums.at(even), sums.at(odd), lengths[even], lengths[odd],
            *((reference.at(even), reference.at(odd)) if reference is not None else ()),
        )  # fmt: skip
        losses = PAIRED[self.options.loss](pairs, self.options)
        if self.options.sft_weight:
            losses = losses - self.options.sft_weight * pairs.chosen_mean.value
        if reference is not None:
            scores = pairs.chosen_ratio, pairs.rejected_ratio
        else:
            scores = pairs.chosen_mean, pairs.rejected_mean
        chosen, rejected = (self.options.beta * each.value for each in scores)
        return LossOutput(losses.sum() * batch.weight, pair_metrics(chosen, rejected, batch.weight))


class KtoObjective(PreferenceObjective):
    """kto: answers marked as good or bad, each with a mismatched answer to estimate the divergence from the reference.

    Args:
        mean_over_ranks: computes the mean over all ranks from this rank's (sum, count), () without a gradient.
    """

    def __init__(
        self,
        model: Any,
        options: PreferenceSection,
        *,
        head_form: HeadForm | None,
        mean_over_ranks: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__(model, options, head_form=head_form)
        self._mean_over_ranks = mean_over_ranks
        self._divergence: torch.Tensor | None = None

    def begin(self, mismatched: Iterable[DeviceBatch], call: Callable[..., Any]) -> None:
        """Estimate the divergence from all answers of a mean, so that it does not depend on their micro-batches."""
        totals, counts = [], []
        with torch.no_grad():
            for batch in mismatched:
                sums = call(self.log_probs, batch)
                drift = _ratio(batch, sums)
                totals.append(drift.sum() * batch.weight)
                counts.append(drift.new_full((), len(drift) * batch.weight))
            total, count = torch.stack(totals).sum(), torch.stack(counts).sum()
            self._divergence = self._mean_over_ranks(total, count).clamp(min=0)

    def forward(self, batch: DeviceBatch) -> LossOutput:
        divergence = self._divergence
        assert batch.groups is not None and divergence is not None
        sums, good = self.log_probs(batch), batch.groups.values
        ratio = _ratio(batch, sums)
        losses = kto(ratio, good, divergence, self.options)
        if self.options.sft_weight:
            mean = sums.divided_by(batch.groups.label_counts).value
            losses = losses - self.options.sft_weight * good * mean
        rewards = (self.options.beta * ratio).detach()
        extras = {
            "good": good.sum(),
            "chosen_reward": (rewards * good).sum(),
            "rejected_reward": (rewards * (1 - good)).sum(),
            "kl": divergence * len(ratio),
        }
        return LossOutput(losses.sum() * batch.weight, {name: value * batch.weight for name, value in extras.items()})

    def to_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Mean rewards over the rows of each kind, as in TRL, and their difference."""
        # There are no means if all steps were skipped.
        good = means.get("good", math.nan)
        chosen = means["chosen_reward"] / good if good > 0 else math.nan
        rejected = means["rejected_reward"] / (1 - good) if good < 1 else math.nan
        return {
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "margin": chosen - rejected,
            "kl": means.get("kl", math.nan),
        }


def _ratio(batch: DeviceBatch, sums: DoubleFloat) -> torch.Tensor:
    """(documents,) fp32: policy minus reference."""
    assert batch.groups is not None and batch.groups.reference is not None
    return sums.minus(batch.groups.reference).value
