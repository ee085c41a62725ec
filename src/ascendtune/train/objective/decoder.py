"""The two halves of a causal language model: tokens to hidden states, and hidden states to scores of tokens."""

from __future__ import annotations

from typing import Any

import torch

from ascendtune.train.batch import DeviceBatch


def decoder_of(model: Any) -> Any:
    """The model without its head; the model itself where its class does not say which part that is."""
    return model.base_model


def hidden_states(model: Any, batch: DeviceBatch) -> torch.Tensor:
    """(batch × tokens, hidden)."""
    hidden: torch.Tensor = decoder_of(model)(**batch.model_inputs()).last_hidden_state
    return hidden.flatten(0, 1)


def labelled_states(model: Any, batch: DeviceBatch) -> torch.Tensor:
    """(labelled, hidden) of the positions with a target."""
    return hidden_states(model, batch).index_select(0, batch.target_index)


def labelled_logits(model: Any, batch: DeviceBatch) -> torch.Tensor:
    """(labelled, vocabulary) fp32, through the model's own head: for models that do more than multiply there."""
    logits: torch.Tensor = model(**batch.model_inputs()).logits
    return logits.flatten(0, 1).index_select(0, batch.target_index).float()
