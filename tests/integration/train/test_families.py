"""Model types of different build, trained by `fit`, against plain torch. All types: `make families`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from families.configs import tiny_config
from families.measure import measure, train_and_read_losses, write_rows
from reference import causal_lm

FAST = ("llama", "granite", "gpt_oss")
# Caps, scales, windows, sinks, mixtures, tied and untied heads, recurrent layers.
LEARNING = (
    "llama", "qwen2", "qwen3", "qwen3_moe", "qwen2_moe", "gemma2", "gemma3_text", "vaultgemma", "nanochat",
    "recurrent_gemma", "granite", "cohere2", "gpt_oss", "deepseek_v3", "olmo2", "phi3", "gpt2", "stablelm",
    "mamba", "falcon_h1",
)  # fmt: skip


@pytest.mark.parametrize("name", FAST)
def test_training_merging_and_answers_equal_plain_torch(name: str, tmp_path: Path, tiny_model: Path) -> None:
    family = measure(name, tmp_path, tiny_model)
    for tried in (family.full, family.lora):
        assert tried is not None
        assert not (tried.failed or tried.different or tried.refused), tried


@pytest.mark.soak
@pytest.mark.parametrize("name", LEARNING)
def test_sixty_steps_at_a_high_learning_rate_follow_plain_torch(name: str, tmp_path: Path, tiny_model: Path) -> None:
    """From a model's own start, where logits are small, to where caps and windows decide."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    directory = tmp_path / "model"
    AutoModelForCausalLM.from_config(tiny_config(name), attn_implementation="eager").save_pretrained(directory)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (directory / file).write_bytes((tiny_model / file).read_bytes())
    rows = write_rows(tmp_path / "rows.jsonl")
    optim: dict[str, Any] = {"learning_rate": 1e-2, "max_grad_norm": None, "scheduler": "constant", "max_steps": 60}
    asked = {"model": {"path": str(directory)}, "data": {"train": str(rows), "max_length": 128}}
    found = train_and_read_losses(asked, tmp_path / "run", optim)
    expected = causal_lm.train(
        causal_lm.load(directory), causal_lm.chatml_rows(directory, rows), steps=60, learning_rate=1e-2
    )
    assert found == pytest.approx(expected[:60], rel=1e-4, abs=1e-6)
