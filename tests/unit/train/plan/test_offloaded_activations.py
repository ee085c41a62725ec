"""The estimate of `memory.offload_activations`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.live_bytes import StepMemory
from ascendtune.train.plan.planned_device import PlannedDevice
from ascendtune.train.plan.request import DocumentSize, Target
from ascendtune.train.plan.traced_step import trace_step
from ascendtune.train.plan.training_choices import TrainingChoices

_MODEL = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 9,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip


def trace(model: Path, *, offload: bool) -> StepMemory:
    recipe = Recipe.check({
        "model": {"path": str(model)}, "data": {"train": [{"path": "x.jsonl"}]}, "precision": "fp32",
        "memory": {"offload_activations": offload},
    })  # fmt: skip
    device = PlannedDevice(Target("cuda", "card", 1 << 40, 1))
    return trace_step(
        TrainingChoices.of(recipe, model, device, ranks=1, vocabulary=0, pad_id=0), (DocumentSize(512, 500),)
    )


@pytest.mark.long
def test_offloading_keeps_saved_tensors_in_host_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_MODEL))
    stays, moved = trace(tmp_path, offload=False), trace(tmp_path, offload=True)
    # At least the input of each matrix: three of the hidden size, one of the feed-forward's.
    assert moved.offloaded > 9 * 4 * 512 * (3 * 64 + 176) and stays.offloaded == 0
    assert moved.moments["loss"]["activations"] < 0.1 * stays.moments["loss"]["activations"]
    assert moved.resting == stays.resting
