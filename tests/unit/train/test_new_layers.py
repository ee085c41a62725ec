"""model.new_layers: a larger model that computes the same, and its recipe keys."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Gemma2Config,
    Gemma4TextConfig,
    GPTNeoXConfig,
    MixtralConfig,
    Qwen2Config,
)

from ascendtune.core.config import Contradiction
from ascendtune.core.errors import RecipeError
from ascendtune.recipe.method import FreezeSection, MethodSection
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.new_layers import expand_layers, expanded_config
from ascendtune.train.tuner.freeze import tune_layers

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 32,
}
GROUPED = {**SIZES, "num_key_value_heads": 1}
FAMILIES = {
    "qwen2, tied": Qwen2Config(**GROUPED, tie_word_embeddings=True, use_sliding_window=True, max_window_layers=2),
    "mixtral": MixtralConfig(**GROUPED, num_local_experts=2),
    "gemma2": Gemma2Config(**GROUPED, head_dim=8),
    "gpt_neox": GPTNeoXConfig(**SIZES),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_expanded_model_computes_the_same_and_shares_the_old_weights(family: str) -> None:
    torch.manual_seed(0)
    config = copy.deepcopy(FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    larger = expand_layers(model, expanded_config(copy.deepcopy(config), 2))
    assert larger.config.num_hidden_layers == 6
    ids = torch.randint(0, 32, (2, 9))
    with torch.no_grad():
        assert torch.equal(larger.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    old = {each.data_ptr() for each in model.parameters()}
    new = [name for name, each in larger.named_parameters() if each.data_ptr() not in old]
    assert {name.split("layers.")[1].partition(".")[0] for name in new} == {"2", "5"}
    # A new layer learns: its output projections get a gradient.
    larger(input_ids=ids, labels=ids).loss.backward()
    assert all(
        each.grad is not None for name, each in larger.named_parameters() if name in new and "experts" not in name
    )
    if types := getattr(config, "layer_types", None):
        assert larger.config.layer_types == [types[number] for number in (0, 1, 1, 2, 3, 3)]


def test_expanded_reward_model_gives_the_same_scores() -> None:
    config = Qwen2Config(**GROUPED, num_labels=1, pad_token_id=0)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
    larger = expand_layers(model, expanded_config(copy.deepcopy(config), 2))
    ids = torch.randint(1, 32, (2, 9))
    with torch.no_grad():
        assert torch.equal(larger.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


@pytest.mark.parametrize("named", ["mlp_only_layers", "per_layer_config"])
def test_layers_chosen_by_number_are_refused(named: str) -> None:
    config = copy.deepcopy(FAMILIES["qwen2, tied"])
    if named == "mlp_only_layers":
        config.mlp_only_layers = [1]
    else:
        config = Gemma4TextConfig(
            **GROUPED, head_dim=8, per_layer_config={number: {"head_dim": 4} for number in (1, 3)}
        )
    with pytest.raises(RecipeError) as caught:
        expanded_config(config, 2)
    assert caught.value.code == "layers-not-expandable"


@pytest.mark.parametrize("count", [3, 8])
def test_numbers_that_do_not_divide_the_layers_are_refused(count: int) -> None:
    with pytest.raises(RecipeError) as caught:
        expanded_config(copy.deepcopy(FAMILIES["mixtral"]), count)
    assert caught.value.code == "layers-not-divisible"


def test_spread_layers_are_the_last_of_each_group() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(FAMILIES["mixtral"]))
    tune_layers(model, MethodSection(tuner="freeze", freeze=FreezeSection(spread_layers=2)))
    trained = {name.split(".")[2] for name, each in model.named_parameters() if each.requires_grad}
    assert trained == {"1", "3"}
    with pytest.raises(RecipeError) as caught:
        tune_layers(model, MethodSection(tuner="freeze", freeze=FreezeSection(spread_layers=3)))
    assert caught.value.code == "layers-not-divisible"


@pytest.mark.parametrize(
    "change", [{"method": {"tuner": "lora"}}, {"model": {"init": "random"}}], ids=["lora", "random"]
)
def test_new_layers_without_a_place_are_refused(change: dict[str, Any]) -> None:
    recipe = {"model": {"path": "m", "new_layers": 2}, "data": {"train": "d"}}
    recipe["model"] |= change.get("model", {})
    with pytest.raises((RecipeError, Contradiction), match="new_layers"):
        Recipe.check({**recipe, "method": change.get("method", {})})
