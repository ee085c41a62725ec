"""Supervised fine-tuning and pretraining: the cross-entropy of the labelled tokens."""

from __future__ import annotations

from typing import Any

from torch import nn

from ascendtune.recipe.method import MethodSection
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.objective.base import Objective, Outcome
from ascendtune.train.objective.cross_entropy import linear_cross_entropy
from ascendtune.train.objective.decoder import labelled_logits, labelled_states
from ascendtune.train.objective.head import HeadForm


def make_sft_objective(model: Any, method: MethodSection, *, head_form: HeadForm | None, **_: Any) -> Objective:
    return SupervisedObjective(model, head_form=head_form)


class SupervisedObjective(Objective):
    """Loss of a causal language model over a micro-batch.

    Args:
        model: a transformers causal language model, adapters inside it or not.
        head_form: how logits follow from `head(decoder(x))`, so that the head can be fused with the loss; None takes
            the model's own logits. `head_probe.head_form` finds out.
    """

    def __init__(self, model: Any, *, head_form: HeadForm | None) -> None:
        super().__init__(model)
        self.head_form = head_form

    def forward(self, batch: DeviceBatch) -> Outcome:
        """The summed loss over the labelled positions."""
        if self.head_form is not None:
            head, hidden = self.model.get_output_embeddings(), labelled_states(self.model, batch)
            return Outcome(linear_cross_entropy(hidden, head, batch.targets, self.head_form), {})
        logits = labelled_logits(self.model, batch)
        return Outcome(nn.functional.cross_entropy(logits, batch.targets, reduction="sum"), {})
