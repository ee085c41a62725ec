"""The trial of an attention compares the values and the gradients of a small copy of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ascendtune.train.attention.proof import AttentionTrial, lm_values

CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2,
)  # fmt: skip
CHANGES = {
    "same": lambda logits: logits,
    # What is added does not depend on a weight: all gradients stay as they are, but the loss is another one.
    "values": lambda logits: logits + torch.linspace(-1, 1, logits.shape[-1]),
    # As much is added as is taken away again: all values stay as they are.
    "gradients": lambda logits: 2 * logits - logits.detach(),
}


@pytest.fixture(scope="module")
def trial() -> AttentionTrial:
    def make(config: Any, name: str) -> Any:
        model: Any = LlamaForCausalLM._from_config(config, attn_implementation="eager")
        model.change = CHANGES.get(name, CHANGES["same"])
        return model

    return AttentionTrial(CONFIG, make, lambda model, inputs: model.change(lm_values(model, inputs)))


@pytest.mark.parametrize("name", CHANGES)
def test_attention_is_accepted_only_if_values_and_gradients_agree(trial: AttentionTrial, name: str) -> None:
    difference = trial.difference_padded(name, masked=False)
    expected = {"same": None, "values": "its values differ by", "gradients": "the gradient of"}[name]
    assert difference is None if expected is None else difference is not None and difference.startswith(expected)
