"""The host does not wait for the device within a step, so the device has work while the next is prepared."""

from __future__ import annotations

import json
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from tests.hardware.conftest import TrainOn

    from ascendtune.machine.torch_backend.device import Device

RECIPES: dict[str, dict[str, Any]] = {
    "full": {},
    "fp16": {"precision": "fp16"},
    "packed": {"data": {"packing": True}},
    "accumulated": {"batch": {"per_device": 2, "accumulate": 2}},
    "noise": {"method": {"sft": {"neftune_alpha": 5.0}}, "data": {"packing": True}},
    "lora": {"method": {"tuner": "lora"}},
    "nf4": {"method": {"tuner": "lora"}, "model": {"quantization": "nf4"}},
    "offloaded": {"memory": {"gradient_checkpointing": True, "offload_activations": True}},
    "fsdp": {"parallel": {"strategy": "fsdp"}},
    "dpo": {"method": {"stage": "preference"}},
    "linear-attention": {"data": {"packing": True}},
}


@pytest.mark.parametrize("name", RECIPES)
def test_more_steps_do_not_make_the_host_wait_more_often(
    name: str, device: Device, train_on: TrainOn, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    if not device.runs_asynchronously:
        pytest.skip(f"operations have run on {device.kind} when they return")
    recipe = {"precision": "bf16", **RECIPES[name]}
    if name == "dpo":
        recipe["data"] = {"train": str(pairs_of(rows, tmp_path / "pairs.jsonl"))}
    if name == "linear-attention":
        recipe["model"] = {"path": str(linear_attention(tiny_model, tmp_path / "model"))}
    # What is made once in a process is made before.
    found = [
        waits(train_on, device, f"{name}-{steps}", {"optim": {"max_steps": steps}, **recipe}) for steps in (1, 2, 6)
    ]
    assert not found[2] - found[1], found[2] - found[1]


def waits(train_on: TrainOn, device: Device, name: str, recipe: dict[str, Any]) -> Counter[str]:
    """What torch says of each wait in a training."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            train_on(device, name, **recipe)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    texts = [f"{each.filename}:{each.lineno}: {each.message}" for each in noted]
    return Counter(each for each in texts if "called a synchronizing CUDA operation" in each)


def linear_attention(tiny_model: Path, path: Path) -> Path:
    """A small Qwen3-Next with random weights and the tokenizer of `tiny_model`."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        vocab_size=512, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        layer_types=["linear_attention", "full_attention"], linear_num_value_heads=2, linear_num_key_heads=1,
        linear_key_head_dim=8, linear_value_head_dim=8, intermediate_size=32, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    Qwen3NextForCausalLM(config).save_pretrained(path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / file, path / file)
    return path


def pairs_of(rows: Path, path: Path) -> Path:
    """Each completion beside the one of the row before."""
    read = [json.loads(line) for line in rows.read_text().splitlines()]
    pairs = [
        {"prompt": row["prompt"], "chosen": row["completion"], "rejected": other["completion"]}
        for row, other in zip(read, read[-1:] + read[:-1], strict=True)
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in pairs))
    return path
