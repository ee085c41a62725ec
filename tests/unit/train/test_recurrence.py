"""Layers with a state compute each document of a packed sequence as if it were alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

from ascendtune.train.attention import recurrence
from ascendtune.train.attention.interface import register
from ascendtune.train.attention.recurrence import documents_apart, keep_documents_apart

LENGTHS = (1, 70, 5, 64, 2, 33)
"""Shorter and longer than a convolution, and than the 64 tokens of a chunk."""


def qwen3_next() -> Any:
    config = Qwen3NextConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        layer_types=["linear_attention", "full_attention"], linear_num_value_heads=2, linear_num_key_heads=1,
        linear_key_head_dim=8, linear_value_head_dim=8, intermediate_size=32, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    return Qwen3NextForCausalLM._from_config(config, attn_implementation=register("eager"))


def mamba() -> Any:
    return MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4))


@pytest.fixture(params=[qwen3_next, mamba])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return request.param()


def packed() -> dict[str, Any]:
    ends = torch.tensor((0, *LENGTHS)).cumsum(0).tolist()
    ids = torch.randint(64, (1, ends[-1]), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    return {"input_ids": ids, "position_ids": positions, "cu_seqlens": tuple(ends), "use_cache": False}


def each_alone(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Logits of all documents, (tokens, vocabulary)."""
    spans = pairwise(inputs["cu_seqlens"])
    return torch.cat([model(input_ids=inputs["input_ids"][:, a:b], use_cache=False).logits[0] for a, b in spans])


def gradients(model: Any, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("recomputed", [False, True])
def test_logits_and_gradients_are_those_of_each_document_alone(model: Any, recomputed: bool) -> None:
    inputs = packed()
    expected = each_alone(model, inputs)
    expected_gradients = gradients(model, expected)
    keep_documents_apart(model)
    if recomputed:
        model.train().activation_checkpointing_enable({"use_reentrant": False})
    found = model(**inputs).logits[0]
    found_gradients = gradients(model, found)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    largest = max(float(each.abs().max()) for each in expected_gradients.values())
    assert found_gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        assert (found_gradients[name] - gradient).abs().max() <= 1e-5 * largest, name


def test_without_borders_a_model_computes_as_before(model: Any) -> None:
    inputs = packed()
    ids = inputs["input_ids"]
    with torch.no_grad():
        before = model(input_ids=ids, use_cache=False).logits
        keep_documents_apart(model)
        assert not torch.equal(model(**inputs).logits, before)
        # Of the model that has just computed documents, and of another one of its class.
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, before)
        other = type(model)._from_config(model.config)
        other.load_state_dict(model.state_dict())
        model(**inputs)
        assert torch.equal(other(input_ids=ids, use_cache=False).logits, before)


def test_after_the_context_documents_are_refused_again() -> None:
    model, inputs = qwen3_next(), packed()
    with documents_apart(model), torch.no_grad():
        model(**inputs)
    with pytest.raises((TypeError, ValueError)):
        model(**inputs)
    assert not model._forward_pre_hooks


def test_a_fused_function_leaves_documents_to_the_others() -> None:
    fused = recurrence._NotOfDocuments(lambda x: 2 * x)
    assert torch.equal(fused(torch.ones(2)), 2 * torch.ones(2))
    recurrence._current.sequence = recurrence._Sequence()
    try:
        assert fused(torch.ones(2)) is None
    finally:
        recurrence._leave()


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [((5,), [[0]]), ((3, 9, 5), [[1, 2], [0]]), ((4, 8, 4, 9), [[3, 1], [0, 2]]), ((1, 1), [[0, 1]])],
)
def test_documents_of_up_to_twice_the_length_share_a_batch(lengths: tuple[int, ...], batches: list[list[int]]) -> None:
    found = recurrence._of_similar_length(torch.tensor(lengths).numpy())
    assert [each.tolist() for each in found] == batches
