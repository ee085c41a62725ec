"""Steps of mixtures of experts and of latent attention are traced and counted, for every tuner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.count_work import count_work
from ascendtune.train.plan.planned_device import PlannedDevice
from ascendtune.train.plan.request import DocumentSize, Target
from ascendtune.train.plan.traced_step import trace_step
from ascendtune.train.plan.training_choices import TrainingChoices

_EXPERTS, _HIDDEN, _INNER, _LAYERS = 4, 32, 16, 2
_MIXTURE = {
    "model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": _HIDDEN, "intermediate_size": 48, "num_experts": 4,
    "moe_intermediate_size": _INNER, "num_experts_per_tok": 2, "num_hidden_layers": _LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
_LATENT = {
    "model_type": "deepseek_v3", "vocab_size": 64, "hidden_size": _HIDDEN, "intermediate_size": 48,
    "moe_intermediate_size": _INNER, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "num_hidden_layers": _LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12, "first_k_dense_replace": 1,
    "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
_NPU = PlannedDevice(Target("npu", "card", 1 << 40, 1))


def _setting(config: dict[str, Any], directory: Path, device: Device, **keys: Any) -> TrainingChoices:
    (directory / "config.json").write_text(json.dumps(config))
    recipe = Recipe.check(
        {"model": {"path": str(directory)}, "data": {"train": "x.jsonl"}, "precision": "bf16", **keys}
    )
    return TrainingChoices.of(recipe, directory, device, ranks=1, vocabulary=0, pad_id=0)


@pytest.mark.parametrize("device", [CpuDevice(), _NPU], ids=["cpu", "npu"])
def test_adapters_beside_experts_are_traced_and_counted(device: Device, tmp_path: Path) -> None:
    setting = _setting(_MIXTURE, tmp_path, device, method={"tuner": "lora", "lora": {"rank": 2}})
    found = trace_step(setting, (DocumentSize(20, 10),))
    # Query and output are 32 × 32, key and value 32 × 16; the experts have none.
    adapters = _LAYERS * 2 * (2 * (32 + 32) + 2 * (32 + 16))
    assert (found.trainable, found.how) == (adapters, "2 of 2 layers traced")
    assert found.resting["adapters"] == 4 * adapters and found.resting["optimizer"] >= 2 * 4 * adapters
    assert count_work(setting).checkpoint_bytes == 3 * 4 * adapters


@pytest.mark.parametrize("device", [CpuDevice(), _NPU], ids=["cpu", "npu"])
def test_experts_are_traced_where_they_train(device: Device, tmp_path: Path) -> None:
    documents = (DocumentSize(20, 10),)
    found = trace_step(_setting(_MIXTURE, tmp_path, device), documents)
    assert found.how == "2 of 2 layers traced" and found.trainable == found.parameters
    gradients = found.moments["backward begins"]
    experts = _LAYERS * _EXPERTS * 3 * _HIDDEN * _INNER
    if device is _NPU:
        # The fused operators keep the experts' weights in the type of autocast.
        own = trace_step(_setting(_MIXTURE, tmp_path, device, kernel={"experts": False}), documents)
        assert gradients["activations"] >= 2 * experts
        assert gradients["activations"] != own.moments["backward begins"]["activations"]
    assert found.moments["update"]["gradients"] == 4 * found.parameters


def test_adapters_of_experts_keep_nothing_of_the_size_of_the_weights_on_an_accelerator(tmp_path: Path) -> None:
    mixture = {**_MIXTURE, "num_experts": 64}
    method = {"tuner": "lora", "lora": {"rank": 8, "target": ["all-experts"]}}
    found, by_peft = (
        trace_step(_setting(mixture, tmp_path, _NPU, method=method, kernel=kernel), (DocumentSize(20, 10),))
        for kernel in ("auto", "off")
    )
    experts = _LAYERS * 64 * 3 * _HIDDEN * _INNER
    activations = [each.moments["backward begins"]["activations"] for each in (found, by_peft)]
    # In bf16; the first layer needs no gradient of its input.
    assert activations[1] >= 2 * experts / _LAYERS
    adapters = _LAYERS * 64 * 8 * (_HIDDEN + 2 * _INNER + _INNER + _HIDDEN)
    # A and B are kept in bf16; B in the order of the product, too.
    assert activations[0] < min(4 * adapters + 40_000, activations[1])


def test_values_smaller_than_keys_are_traced_on_an_accelerator(tmp_path: Path) -> None:
    found = trace_step(_setting(_LATENT, tmp_path, _NPU), (DocumentSize(20, 10),))
    assert found.how == "2 of 2 layers traced"
