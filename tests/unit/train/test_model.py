"""Embeddings that grow for new tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PhiConfig, PhiForCausalLM, xLSTMConfig, xLSTMForCausalLM

from ascendtune.hub.loaded_weights import without_own_implementations
from ascendtune.train.model import grow_embeddings


def tiny(tied: bool) -> Any:
    config = LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=tied, bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("tied", [True, False])
def test_a_new_token_looks_and_scores_like_the_mean_of_the_others(tied: bool) -> None:
    model = tiny(tied)
    inputs, outputs = (each.weight.detach().clone() for each in (model.get_input_embeddings(), model.lm_head))
    assert grow_embeddings(model, 23) == 3
    for table, before in ((model.get_input_embeddings().weight, inputs), (model.lm_head.weight, outputs)):
        assert torch.equal(table[:20], before)
        torch.testing.assert_close(table[20:], before.mean(0).expand(3, 8))
    logits = model(input_ids=torch.tensor([[5, 21]])).logits
    # Scores are linear in the head's rows: a new token's is the mean of the old ones'.
    torch.testing.assert_close(logits[..., 20:], logits[..., :20].mean(-1, keepdim=True).expand(1, 2, 3))
    assert (model.get_input_embeddings().weight is model.lm_head.weight) == tied
    assert model.config.vocab_size == 23


def test_a_new_token_gets_the_mean_bias_of_a_head_that_has_one() -> None:
    config = PhiConfig(vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = PhiForCausalLM(config)
    torch.nn.init.normal_(model.lm_head.bias, mean=-5.0)
    grow_embeddings(model, 23)
    logits = model(input_ids=torch.tensor([[5, 21]])).logits
    torch.testing.assert_close(logits[..., 20:], logits[..., :20].mean(-1, keepdim=True).expand(1, 2, 3))


def test_new_tokens_need_no_initialisation_of_the_models_own() -> None:
    """That of xLSTM is written for the whole model, and fails for a single table."""
    config = xLSTMConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_heads=2, chunkwise_kernel="chunkwise--native_autograd",
        sequence_kernel="native_sequence__native", step_kernel="native",
    )  # fmt: skip
    model = xLSTMForCausalLM(config)
    before = model.get_input_embeddings().weight.detach().clone()
    own = xLSTMForCausalLM._init_weights
    assert grow_embeddings(model, 23) == 3
    torch.testing.assert_close(model.get_input_embeddings().weight[20:], before.mean(0).expand(3, 16))
    assert xLSTMForCausalLM._init_weights is own


def test_a_larger_table_than_the_tokenizer_needs_is_left_as_it_is() -> None:
    model = tiny(tied=False)
    before = model.lm_head.weight.detach().clone()
    assert grow_embeddings(model, 20) == grow_embeddings(model, 7) == 0
    assert torch.equal(model.lm_head.weight, before)


@pytest.mark.parametrize("value", [False, [], None])
def test_model_answers_with_named_outputs_whatever_its_config_says(value: object) -> None:
    model = tiny(tied=True)
    model.config.return_dict = value
    without_own_implementations(model.config)
    assert model(input_ids=torch.tensor([[5, 6]])).logits.shape == (1, 2, 20)
