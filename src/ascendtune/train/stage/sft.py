"""Supervised fine-tuning: the cross-entropy of the labelled tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ascendtune.train.batch import DeviceBatch
from ascendtune.train.loss.cross_entropy import linear_cross_entropy


class SupervisedObjective(nn.Module):
    """Loss of a causal language model over a micro-batch; the module that strategies wrap.

    Args:
        model: a transformers causal language model, adapters inside it or not.
        plain_head: logits are `head(decoder(x))` and nothing else, so that the head can be fused with the loss.
            `guard.head_is_plain` finds out.
    """

    def __init__(self, model: Any, *, plain_head: bool) -> None:
        super().__init__()
        self.model = model
        self.plain_head = plain_head

    def forward(self, batch: DeviceBatch) -> torch.Tensor:
        """(): the summed loss over the labelled positions, fp32. Who calls divides by the global number of them."""
        if self.plain_head:
            hidden = decoder_of(self.model)(**batch.model_inputs()).last_hidden_state
            labelled = hidden.flatten(0, 1).index_select(0, batch.target_index)
            return linear_cross_entropy(labelled, self.model.get_output_embeddings(), batch.targets)
        logits = self.model(**batch.model_inputs()).logits.flatten(0, 1).index_select(0, batch.target_index)
        return nn.functional.cross_entropy(logits.float(), batch.targets, reduction="sum")


def decoder_of(model: Any) -> Any:
    """The model without its head; the model itself where its class does not say which part that is."""
    return model.base_model
