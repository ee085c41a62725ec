"""Results of our own runs can be merged, for every form of LoRA; verified against PEFT's logits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.train.pairs import write_pairs

from ascendtune.data.tokenizer import Tokenizer
from ascendtune.hub.weight_files import read_weight_headers
from ascendtune.merge.merge import merge

_SHORT = {"max_steps": 2, "learning_rate": 1e-2}


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"lora": {"dora": True}}, "model": {"new_tokens": ["<|new|>"]}},
        {"method": {"lora": {"init": "pissa", "rslora": True}}},
        {"method": {"lora": {"modules_to_save": ["embed_tokens"]}}},
        {"method": {"lora": {"modules_to_save": ["embed_tokens"]}}, "model": {"new_tokens": ["<|new|>"]}},
        {"method": {"lora": {"modules_to_save": "all-embeddings"}}, "model": {"new_tokens": ["<|new|>"]}},
    ],
    ids=["dora, new token", "pissa, rslora", "modules_to_save", "new token in a table", "new token, all-embeddings"],
)
def test_merged_run_equals_base_plus_adapter(
    changes: dict[str, Any], train: Callable[..., Any], tmp_path: Path
) -> None:
    method = {"tuner": "lora", "lora": changes["method"]["lora"]}
    run = train(optim=_SHORT, method=method, model=changes.get("model", {})).run
    merged = merge([str(run)], tmp_path / "merged")
    assert merged.verification is not None
    assert merged.verification.difference < 1e-5 and merged.verification.effect != 0
    ours, trained = Tokenizer.load(tmp_path / "merged"), Tokenizer.load(run.model)
    assert (ours.vocab_size, ours.chat_templates) == (trained.vocab_size, trained.chat_templates)


@pytest.mark.parametrize("stage", ["sft", "reward"])
def test_a_head_with_a_bias_grows_with_its_weight_and_goes_with_it(
    stage: str, train: Callable[..., Any], variant: Callable[..., Path], tmp_path: Path
) -> None:
    from transformers import PhiConfig

    base = variant(
        PhiConfig(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    )
    model = {"path": str(base), **({"new_tokens": ["<|new|>"]} if stage == "sft" else {})}
    data = {} if stage == "sft" else {"train": str(write_pairs(tmp_path / "pairs.jsonl", 4))}
    run = train(
        optim={**_SHORT, "learning_rate": 3e-3}, method={"stage": stage, "tuner": "lora"}, model=model, data=data
    ).run
    merged = merge([str(run)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.difference < 1e-5
    tensors = read_weight_headers(tmp_path / "merged")
    shapes = {name: each.shape for header in tensors.values() for name, each in header.tensors.items()}
    assert shapes.get("lm_head.bias") == ((513,) if stage == "sft" else None)


def test_a_run_that_continued_from_another(train: Callable[..., Any], tmp_path: Path) -> None:
    first = train(name="first", optim=_SHORT, method={"tuner": "lora"}).run
    lora = {"start_from": [str(first.model)]}
    second = train(name="second", optim=_SHORT, method={"tuner": "lora", "lora": lora}).run
    merged = merge([str(second)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.difference < 1e-5


def test_merged_reward_run_keeps_its_score_head(
    recipe: Callable[..., Any], train: Callable[..., Any], tmp_path: Path
) -> None:
    rows = tmp_path / "pairs.jsonl"
    pair = {"prompt": "2+3?", "chosen": "5", "rejected": "a diet"}
    rows.write_text("".join(json.dumps({**pair, "prompt": f"{number}?"}) + "\n" for number in range(12)))
    run = train(optim=_SHORT, method={"stage": "reward", "tuner": "lora"}, data={"train": str(rows)}).run
    merged = merge([str(run)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.difference < 1e-5
    assert any("AutoModelForSequenceClassification" in note for note in merged.notes)
