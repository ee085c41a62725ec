"""Supervised fine-tuning and pretraining: the cross-entropy of the labelled tokens."""

from __future__ import annotations

from typing import Any

from torch import nn

from ascendtune.train.batch import DeviceBatch
from ascendtune.train.loss.cross_entropy import linear_cross_entropy
from ascendtune.train.method import MethodSection
from ascendtune.train.stage.base import Objective, Outcome
from ascendtune.train.stage.decoder import labelled_logits, labelled_states


def supervised(model: Any, method: MethodSection, *, plain_head: bool, **_: Any) -> Objective:
    return SupervisedObjective(model, plain_head=plain_head)


class SupervisedObjective(Objective):
    """Loss of a causal language model over a micro-batch.

    Args:
        model: a transformers causal language model, adapters inside it or not.
        plain_head: logits are `head(decoder(x))` and nothing else, so that the head can be fused with the loss.
            `guard.head_is_plain` finds out.
    """

    def __init__(self, model: Any, *, plain_head: bool) -> None:
        super().__init__(model)
        self.plain_head = plain_head

    def forward(self, batch: DeviceBatch) -> Outcome:
        """The summed loss over the labelled positions."""
        if self.plain_head:
            head = self.model.get_output_embeddings()
            return Outcome(linear_cross_entropy(labelled_states(self.model, batch), head, batch.targets), {})
        logits = labelled_logits(self.model, batch)
        return Outcome(nn.functional.cross_entropy(logits, batch.targets, reduction="sum"), {})
