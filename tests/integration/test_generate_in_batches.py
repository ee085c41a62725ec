"""Answers in a batch of prompts of different lengths equal those to single prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ascendtune.infer.engine import Sampling
from ascendtune.infer.transformers_model import TransformersModel
from ascendtune.machine.torch_backend.find import find_device

SHAPE: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip
PROMPTS = [[5, 9, 11], [7, 3, 8, 2, 6, 4, 9, 10, 12, 44, 21, 17], [33]]
MINIMAX = {"num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 8,
           "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip


def generator_of(name: str, changes: dict[str, Any]) -> TransformersModel:
    import transformers

    config = getattr(transformers, name)(**{**SHAPE, **changes})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return TransformersModel(model, find_device())


@pytest.mark.parametrize(
    ("name", "changes", "pads"),
    [("LlamaConfig", {}, True), ("Gemma3TextConfig", {"sliding_window": 8}, True), ("MiniMaxConfig", MINIMAX, False)],
    ids=["llama", "gemma3", "minimax"],
)
def test_answers_in_a_batch_are_those_alone(
    name: str, changes: dict[str, Any], pads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = generator_of(name, changes)
    options: dict[str, Any] = {"sampling": Sampling(12), "stop_ids": [], "pad_id": 0}
    told: list[str] = []
    monkeypatch.setattr("ascendtune.infer.transformers_model.warn", told.append)
    together = model.generate(PROMPTS, **options)
    assert together == [model.generate([prompt], **options)[0] for prompt in PROMPTS]
    assert [text for text in told if "one at a time" in text] == told
    assert len(told) == (0 if pads else 1)
