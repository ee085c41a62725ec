"""The closed form of a step's FLOPs, against torch's counter on real models and against written-out sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.flops import ModelFlops, Passes, pairs
from ascendtune.train.model import apply_tuner, recompute_activations
from ascendtune.train.model_flops import model_flops

_LENGTH, _ROWS = 12, 2
_SIZES = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
_DENSE = {"model_type": "llama", **_SIZES}
_GROUPED = {"model_type": "qwen3", **_SIZES, "num_key_value_heads": 2, "head_dim": 16}
_MIXTURE = {
    "model_type": "qwen3_moe", **_SIZES, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "head_dim": 8, "decoder_sparse_step": 1, "norm_topk_prob": True,
}  # fmt: skip


# Rotations of two terms are made without products.
_OFT: dict[str, Any] = {"tuner": "oft", "oft": {"block_size": 8, "cayley_neumann_terms": 2}}


def _recipe(**keys: Any) -> Recipe:
    return Recipe.check({"model": {"path": "x"}, "data": {"train": [{"path": "x.jsonl"}]}, **keys})


def _model(values: dict[str, Any], recipe: Recipe) -> Any:
    values = dict(values)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    # The eager form is written as products that the counter knows.
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    if hasattr(config, "num_experts"):
        # Grouped products are not in the counter.
        model.set_experts_implementation("eager")
    apply_tuner(model, recipe.method)
    recompute_activations(model, recipe.memory)
    return model


def _counted(model: nn.Module) -> int:
    """Of a forward and a backward pass through the model's own logits, as torch counts it."""
    ids = torch.randint(1, 96, (_ROWS, _LENGTH))
    # torch's counter does not know the product that is added in place, which LoRA layers use.
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _flops_of_addmm}) as counter:
        loss = model(input_ids=ids, use_cache=False).logits.float().logsumexp(-1).sum()
        loss.backward()
    return int(counter.get_total_flops())


def _flops_of_addmm(_: Any, a_shape: torch.Size, b_shape: torch.Size, **__: Any) -> int:
    return 2 * a_shape[0] * a_shape[1] * b_shape[1]


def _closed(found: ModelFlops) -> float:
    """With the whole square of scores that eager attention computes."""
    positions = _ROWS * _LENGTH
    square = sum((each * (_ROWS * _LENGTH**2) for _, each in found.attention), start=Passes())
    return (found.body * positions + found.head * positions + square).computed


@pytest.mark.parametrize(
    "values",
    [_DENSE, pytest.param(_GROUPED, marks=pytest.mark.long), _MIXTURE],
    ids=["dense", "grouped", "mixture"],
)
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"memory": {"gradient_checkpointing": True}},
        {"method": {"tuner": "lora", "lora": {"rank": 4}}},
        {"method": {"tuner": "lora", "lora": {"rank": 4, "target": ["q_proj", "k_proj", "v_proj"]}}},
        {"method": {"tuner": "lora", "lora": {"rank": 4}}, "memory": {"gradient_checkpointing": True}},
        {"method": {"tuner": "freeze", "freeze": {"last_layers": 1}}},
        {"method": _OFT},
        {"method": _OFT, "memory": {"gradient_checkpointing": True}},
        {"method": {"tuner": "oft", "oft": {**_OFT["oft"], "target": ["q_proj", "k_proj", "v_proj"]}}},
    ],
    ids=[
        *("full", "recomputed", "lora", "lora of three", "lora recomputed", "last layer"),
        *("oft", "oft recomputed", "oft of three"),
    ],
)
def test_closed_form_equals_the_counter_of_torch(values: dict[str, Any], keys: dict[str, Any]) -> None:
    recipe = _recipe(**keys)
    model = _model(values, recipe)
    assert _closed(model_flops(model, recipe, head_is_fused=False)) == _counted(model)


def test_a_first_block_with_frozen_keys_computes_one_product_less_in_eager_attention() -> None:
    """Fused attention computes the gradients of queries, keys and values together: the closed form counts all."""
    recipe = _recipe(method={"tuner": "lora", "lora": {"rank": 4, "target": ["q_proj", "v_proj"]}})
    model = _model(_DENSE, recipe)
    gradient_of_keys = 2 * 32 * _ROWS * _LENGTH**2
    assert _closed(model_flops(model, recipe, head_is_fused=False)) - _counted(model) == gradient_of_keys


@pytest.mark.parametrize("recomputed", [False, True])
def test_rotations_are_made_once_a_forward_pass(recomputed: bool) -> None:
    """Five terms are three products of blocks, with two more for each in the backward pass: these are not counted."""
    recipe = _recipe(method={"tuner": "oft", "oft": {"block_size": 8}}, memory={"gradient_checkpointing": recomputed})
    model = _model(_DENSE, recipe)
    blocks = 3 * (6 * 32 + 88) / 8
    made = 2 * blocks * 8**3 * 3 * (4 if recomputed else 3)
    assert _counted(model) - _closed(model_flops(model, recipe, head_is_fused=False)) == made


@pytest.mark.parametrize("values", [_DENSE, _MIXTURE], ids=["dense", "stacked experts"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_model_whose_weights_lie_in_shards_counts_as_a_whole_one(values: dict[str, Any], recomputed: bool) -> None:
    """As ZeRO-3 makes it: each parameter is empty, and `ds_shape` keeps the shape of the whole one."""
    recipe = _recipe(method={"tuner": "lora"}, memory={"gradient_checkpointing": recomputed})
    model = _model(values, recipe)
    whole = model_flops(model, recipe, head_is_fused=True)
    for parameter in model.parameters():
        parameter.ds_shape, parameter.data = parameter.shape, torch.empty(0)
    assert model_flops(model, recipe, head_is_fused=True) == whole


def test_pairs_are_those_that_a_causal_window_shows() -> None:
    for length in (1, 5, 12):
        for window in (None, 1, 4, 20):
            seen = sum(1 for q in range(length) for k in range(q + 1) if window is None or q - k < window)
            assert pairs(length, window) == seen


def test_documents_pay_for_their_own_length_and_labels() -> None:
    recipe = _recipe()
    found = model_flops(_model(_DENSE, recipe), recipe, head_is_fused=True)
    matrices = 3 * (4 * 32 * 32 + 3 * 32 * 88)
    expected = 6 * matrices * 30 + 6 * 32 * 96 * 7 + 3 * 6 * 2 * 32 * (55 + 210)
    assert found.of_documents({10: 1, 20: 1}, labels=7).computed == expected
    padded = found.of_documents({10: 1, 20: 1}, labels=7, padding=10)
    assert padded.computed - expected == 6 * matrices * 10
    mean = found.per_token({10: 1, 20: 1}, padding_ratio=0.25)
    assert mean.computed_flops(30, 7) == pytest.approx(padded.computed)
    assert mean.useful_flops(30, 7) == pytest.approx(expected)


def test_windows_are_those_of_the_layers() -> None:
    values = {
        "model_type": "gemma2", **_SIZES, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }  # fmt: skip
    recipe = _recipe()
    found = model_flops(_model(values, recipe), recipe, head_is_fused=True)
    assert {window: each.forward for window, each in found.attention} == {4: 2 * 128.0, None: 128.0}


def test_each_layer_has_heads_of_its_own_size() -> None:
    values = {
        "model_type": "gemma4_text", **_SIZES, "head_dim": 8, "global_head_dim": 16, "sliding_window": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    recipe = _recipe()
    found = dict(model_flops(_model(values, recipe), recipe, head_is_fused=False).attention)
    assert (found[6].forward, found[None].forward) == (2 * 2 * 4 * (8 + 8), 2 * 4 * (16 + 16))


def test_preference_losses_compute_the_logits_again() -> None:
    recipe = _recipe(method={"stage": "preference"})
    found = model_flops(_model(_DENSE, recipe), recipe, head_is_fused=True)
    assert found.head.again == found.head.forward == 2 * 32 * 96


def test_asft_computes_a_second_forward_pass() -> None:
    recipe = _recipe(method={"sft": {"loss": "asft"}})
    found = model_flops(_model(_DENSE, recipe), recipe, head_is_fused=True)
    plain = model_flops(_model(_DENSE, _recipe()), _recipe(), head_is_fused=True)
    assert (found.body.forward, found.body.again) == (plain.body.forward, plain.body.forward)
    assert (found.head.forward, found.head.again) == (plain.head.forward, plain.head.forward)
    assert all(each.again == each.forward > 0 for _, each in found.attention)


@pytest.mark.parametrize("recomputed", [False, True])
def test_mismatched_answers_of_kto_have_a_forward_pass_only(recomputed: bool) -> None:
    """Each row of a step is two documents: an answer, and a mismatched one that is asked without gradients."""
    recipe = _recipe(
        method={"stage": "preference", "preference": {"loss": "kto"}}, memory={"gradient_checkpointing": recomputed}
    )
    model = _model(_DENSE, recipe)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(input_ids=torch.randint(1, 96, (_ROWS, _LENGTH)), use_cache=False)
    both = _counted(model) + forward.get_total_flops()
    found = model_flops(model, recipe, head_is_fused=False)
    # _closed has _ROWS documents.
    assert 2 * _closed(found) == both
    useful = model_flops(model, _recipe(), head_is_fused=False)
    assert (2 * found.body.useful, 2 * found.head.useful) == (useful.body.useful, useful.head.useful)
