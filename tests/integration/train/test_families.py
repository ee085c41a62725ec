"""Model types of different build, trained by `fit`, against plain torch. All types: `make families`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.train.precision import DTYPES
from families.configs import tiny_config
from families.measure import measure, train_and_read_losses, write_rows
from reference import causal_lm

FAST = ("llama", "granite", "gpt_oss", "gemma4_text")
# Config fields beside those of `tiny_config`, and what the head is multiplied with. Windows are 8 tokens unless it says
# so here, rows have 20 to 42.
LEARNING: dict[str, tuple[dict[str, Any], float]] = {
    "llama": ({}, 1),
    "mistral": ({"sliding_window": 30}, 1),
    "qwen3": ({"tie_word_embeddings": True, "sliding_window": 64}, 1),
    "qwen2": ({}, 1),
    "qwen3_moe": ({}, 1),
    "qwen2_moe": ({}, 1),
    "deepseek_v3": ({}, 1),
    "gpt_oss": ({}, 100),
    "gemma2": ({}, 100),
    "vaultgemma": ({}, 1),
    "gemma3_text": ({}, 1),
    "nanochat": ({}, 1000),
    "granite": ({"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.22}, 100),
    "cohere2": ({}, 1),
    "olmo2": ({}, 1),
    "phi3": ({}, 1),
    "gpt2": ({}, 1),
    "recurrent_gemma": ({}, 1),
    "mamba": ({}, 1),
    "falcon_h1": ({"lm_head_multiplier": 0.04, "key_multiplier": 0.4}, 1),
}


@pytest.fixture
def _in_fp64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """fp32 stands for fp64 everywhere: what rounding does to sixty steps is no part of the comparison."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setitem(DTYPES, "fp32", torch.float64)
    # Without the casts of `sdpa_fp32`, whose name for fp32 is torch's own.
    monkeypatch.setattr(CpuDevice, "attention", "sdpa")
    # torch's own takes 32 bits at most.
    monkeypatch.setattr(torch.nn.functional, "grouped_mm", _grouped_mm)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def _grouped_mm(rows: torch.Tensor, weight: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
    """(rows, out): the groups of `rows` (rows, in) end at `offs` (groups,); each meets its (in, out) of `weight`."""
    groups = rows.tensor_split(offs[:-1].tolist())
    return torch.cat([group @ matrix for group, matrix in zip(groups, weight, strict=True)])


@pytest.mark.parametrize("name", FAST)
def test_training_merging_and_answers_equal_plain_torch(name: str, tmp_path: Path, tiny_model: Path) -> None:
    family = measure(name, tmp_path, tiny_model)
    for tried in (family.full, family.lora):
        assert tried is not None
        assert not (tried.failed or tried.different or tried.refused), tried


@pytest.mark.soak
@pytest.mark.usefixtures("_in_fp64")
@pytest.mark.parametrize("name", LEARNING)
def test_sixty_steps_at_a_high_learning_rate_follow_plain_torch(name: str, tmp_path: Path, tiny_model: Path) -> None:
    """From a model's own start, where logits are small, to where caps and windows decide.

    In fp32 the reference itself leaves its own fp64 curve after 25 to 45 steps by more than 1e-4 (qwen2, gemma2).
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    changes, factor = LEARNING[name]
    config = tiny_config(name)
    config.update(changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(factor)
    directory = tmp_path / "model"
    model.save_pretrained(directory)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (directory / file).write_bytes((tiny_model / file).read_bytes())
    rows = write_rows(tmp_path / "rows.jsonl")
    optim: dict[str, Any] = {"learning_rate": 1e-2, "max_grad_norm": None, "scheduler": "constant", "max_steps": 60}
    asked = {"model": {"path": str(directory)}, "data": {"train": str(rows), "max_length": 128}}
    found = train_and_read_losses(asked, tmp_path / "run", optim)
    expected = causal_lm.train(
        causal_lm.load(directory, torch.float64), causal_lm.chatml_rows(directory, rows), steps=60, learning_rate=1e-2
    )
    assert found == pytest.approx(expected[:60], rel=1e-6, abs=1e-9)
