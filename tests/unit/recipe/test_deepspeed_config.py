"""The configuration for DeepSpeed, from the recipe's keys and from a user's own JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.deepspeed_config import stage_of, zero_config
from ascendtune.recipe.recipe import Recipe

# The shape of the files that LLaMA-Factory and transformers' documentation hand out.
AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}


def recipe(section: dict[str, Any], **changes: Any) -> Recipe:
    values = {"model": {"path": "m"}, "data": {"train": "d"}, "batch": {"per_device": 4, "accumulate": 2}}
    return Recipe.check({**values, "parallel": {"strategy": "deepspeed", "deepspeed": section}, **changes})


def from_json(directory: Path, config: object, **changes: Any) -> dict[str, Any]:
    path = directory / "ds.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return zero_config(recipe({"config": str(path)}, **changes), compute="bf16", ranks=2, hidden_size=64)


def test_recipe_keys_become_deepspeed_keys() -> None:
    section = {"stage": 3, "offload_optimizer": "nvme", "offload_param": "cpu", "nvme_path": "/fast"}
    config = zero_config(recipe(section, optim={"max_grad_norm": None}), compute="fp16", ranks=2, hidden_size=64)
    assert config["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "pin_memory": True, "nvme_path": "/fast"},
        "offload_param": {"device": "cpu", "pin_memory": True},
    }
    assert config["fp16"]["enabled"] and not config["bf16"]["enabled"]
    assert config["gradient_clipping"] == 0.0 and config["train_micro_batch_size_per_gpu"] == 4


def test_auto_is_filled_from_the_recipe(tmp_path: Path) -> None:
    config = from_json(tmp_path, AUTO)
    assert "auto" not in json.dumps(config) and "optimizer" not in config
    assert stage_of(config) == 3
    assert config["bf16"]["enabled"] and not config["fp16"]["enabled"]
    assert config["fp16"]["initial_scale_power"] == 16
    zero = config["zero_optimization"]
    assert zero["overlap_comm"] is True
    assert zero["reduce_bucket_size"] == 4096
    assert zero["stage3_prefetch_bucket_size"] == 3686
    assert zero["stage3_param_persistence_threshold"] == 640
    # The loop divides by tokens and says which micro-batch is the last.
    assert config["gradient_accumulation_steps"] == 1 and config["gradient_clipping"] == 1.0


def test_weights_keep_their_order(tmp_path: Path) -> None:
    zero = {"stage": 2, "round_robin_gradients": True}
    assert from_json(tmp_path, {"zero_optimization": zero})["zero_optimization"]["round_robin_gradients"] is False


def test_values_that_agree_are_fine(tmp_path: Path) -> None:
    agreeing = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-5, "betas": [0.9, 0.999]}},
        "bf16": {"enabled": True},
    }
    assert stage_of(from_json(tmp_path, agreeing)) == 0


@pytest.mark.parametrize(
    "off",
    [
        *({name: {"enabled": False}} for name in ("amp", "autotuning", "elasticity", "curriculum_learning")),
        {"torch_autocast": {"enabled": "auto"}},
        {"sparse_gradients": False},
        {"compression_training": {}},
        {"tensor_parallel": {"autotp_size": 1}},
        {"sequence_parallel_size": 1},
        {"scheduler": None},
        {"optimizer": None},
        {"wall_clock_breakdown": "auto"},
        {"_comment": "ours"},
        {"//": "ours"},
        {"comms_config": {"verbose": False}, "monitor_config": {"enabled": True}},
    ],
    ids=str,
)
def test_features_that_are_off_are_not_passed_on(tmp_path: Path, off: dict[str, Any]) -> None:
    """DeepSpeed refuses `amp` and others also where they are off."""
    zero = {"zero_optimization": {"stage": 2}}
    assert from_json(tmp_path, {**zero, **off}) == from_json(tmp_path, zero)


@pytest.mark.parametrize(
    ("key", "place", "remedy"),
    [
        ("gradient_cliping", '{"gradient_cliping": 0.5}', "gradient_clipping"),
        ("typ", '{"optimizer": {"typ": "Lamb"}}', "type"),
        ("learning_rate", '{"optimizer": {"params": {"learning_rate": 3}}}', "remove it"),
        ("gradient_checkpointing", '{"gradient_checkpointing": true}', "memory.gradient_checkpointing"),
        ("zero_optimisation", '{"zero_optimisation": {"stage": 3}}', "zero_optimization"),
    ],
)
def test_unknown_key_is_found(tmp_path: Path, key: str, place: str, remedy: str) -> None:
    with pytest.raises(RecipeError) as raised:
        from_json(tmp_path, f"{{\n\n{place[1:]}")
    assert raised.value.code == "unknown-deepspeed-key" and f"'{key}'" in raised.value.what
    assert remedy in raised.value.remedy and raised.value.where == f"{tmp_path / 'ds.json'}:3"


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"gradient_allreduce_op": "sum"}, "conflicting-keys"),
        ({"managed_gradient_accumulation": False}, "conflicting-keys"),
        ({"zero_optimization": {"stage": 2, "compute_grad_norm": False}}, "conflicting-keys"),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "conflicting-keys"),
        ({"optimizer": {"type": "AdamW", "params": {"amsgrad": True}}}, "conflicting-keys"),
        ({"optimizer": {"params": {"momentum": 0.9}}}, "conflicting-keys"),
        ({"optimizer": {"params": {"max_grad_norm": 0.3}}}, "conflicting-keys"),
        ({"quantize_training": {"enabled": True}}, "conflicting-keys"),
        ({"datastates_ckpt": {"host_cache_size": 16}}, "conflicting-keys"),
        ({"sparse_gradients": True}, "not-in-this-version"),
        ({"progressive_layer_drop": {"enabled": True}}, "not-in-this-version"),
        ({"tensor_parallel": {"autotp_size": 4}}, "not-in-this-version"),
        ({"sequence_parallel_size": 2}, "not-in-this-version"),
        ({"zero_optimization": {"stage": 2, "legacy_stage1": True}}, "not-in-this-version"),
        ({"zero_optimization": {"stage": 3, "stage3_module_granularity_threshold": 900}}, "not-in-this-version"),
        ({"zero_optimization": {"stage": 3, "module_granularity_threshold": 900}}, "not-in-this-version"),
        ({"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, "not-in-this-version"),
        ({"zero_optimization": {"stage": 2, "zenflow": {}}}, "not-in-this-version"),
        ({"bfloat16": {"enabled": True}}, "invalid-value"),
        ({"optimizer": "AdamW"}, "invalid-value"),
        ({"optimizer": {"params": [1]}}, "invalid-value"),
    ],
    ids=str,
)
def test_keys_that_would_change_the_training_are_refused(tmp_path: Path, config: dict[str, Any], code: str) -> None:
    with pytest.raises(RecipeError) as raised:
        from_json(tmp_path, config)
    assert raised.value.code == code


def test_zero_features_that_are_off_are_accepted(tmp_path: Path) -> None:
    off = {"legacy_stage1": False, "stage3_module_granularity_threshold": 0, "zenflow": None}
    assert stage_of(from_json(tmp_path, {"zero_optimization": {"stage": 3, **off}})) == 3


@pytest.mark.parametrize("steps", [0, 5, "auto", None, 1e999], ids=str)
def test_deepspeed_prints_no_steps(tmp_path: Path, steps: Any) -> None:
    """It would divide by the number."""
    assert from_json(tmp_path, {"steps_per_print": steps})["steps_per_print"] == 2**40


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"train_micro_batch_size_per_gpu": 8}, "'train_micro_batch_size_per_gpu' is 8, batch.per_device 4"),
        ({"train_batch_size": 8}, "'train_batch_size' is 8, batch.per_device × batch.accumulate × 2 devices 16"),
        ({"gradient_clipping": 0.5}, "'gradient_clipping' is 0.5, optim.max_grad_norm 1.0"),
        ({"fp16": {"enabled": True}}, "'fp16.enabled' is true, precision (bf16) false"),
        ({"optimizer": {"type": "Lamb"}}, "'optimizer.type' is Lamb, optim.optimizer auto"),
        ({"optimizer": {"params": {"lr": 3e-4}}}, "'optimizer.params.lr' is 0.0003, optim.learning_rate 1e-05"),
        ({"scheduler": {"type": "WarmupLR"}}, "'scheduler' replaces optim.scheduler"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as raised:
        from_json(tmp_path, config)
    assert said in raised.value.what and raised.value.where == f"{tmp_path / 'ds.json'}:1"


def test_all_contradictions_at_once_each_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as raised:
        from_json(tmp_path, '{\n\t"gradient_accumulation_steps": 5,\n\t"gradient_clipping": 2\n}')
    places = [each.where for each in (raised.value, *raised.value.further)]
    assert places == [f"{tmp_path / 'ds.json'}:{line}" for line in (2, 3)]


@pytest.mark.parametrize(
    ("zero", "said", "remedy"),
    [
        (
            {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/fast"}},
            "zero_optimization.offload_optimizer: nvme needs stage 3",
            "zero_optimization.stage: 3",
        ),
        (
            {"stage": 2, "offload_param": {"device": "cpu"}},
            "zero_optimization.offload_param needs stage 3",
            "zero_optimization.stage: 3",
        ),
        (
            {"stage": 3, "offload_param": {"device": "nvme"}},
            "offloading to nvme needs a directory",
            "set zero_optimization.offload_param.nvme_path",
        ),
        ({"stage": "auto"}, "there is no such ZeRO stage", "0, 1, 2 or 3"),
        ({"stage": 2, "offload_optimizer": "cpu"}, "not an object whose device", '{"device": "cpu"}'),
        ({"stage": 3, "offload_param": {"device": "gpu"}}, "offload_param' is not an object", '{"device": "cpu"}'),
        ({"stage": 2, "cpu_offload": True}, "an older name for offload_optimizer", '"offload_optimizer": {'),
        (True, "'zero_optimization' is not an object", "between { and }"),
    ],
)
def test_unsupported_zero_options_are_refused(tmp_path: Path, zero: Any, said: str, remedy: str) -> None:
    with pytest.raises(RecipeError) as raised:
        from_json(tmp_path, {"zero_optimization": zero})
    assert said in raised.value.what and remedy in raised.value.remedy
    assert raised.value.where == f"{tmp_path / 'ds.json'}:1"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_stage_0_in_half_precision_is_refused_from_the_recipe_alone(tmp_path: Path, precision: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe({"stage": 0}, precision=precision)
    assert caught.value.code == "refused-combination"
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 0}, precision: {"enabled": True}}))
    asked = recipe({"config": str(file)}, precision=precision)
    with pytest.raises(RecipeError) as raised:
        zero_config(asked, compute=None, ranks=None, hidden_size=None)
    assert raised.value.code == "refused-combination"
    assert raised.value.where == f"{file}:1"
    recipe({"stage": 0}, precision="fp32")


@pytest.mark.parametrize("text", ["{", "[]", '{"zero_optimization": {"stage": '])
def test_deepspeed_file_that_is_not_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RecipeError, match=r"not valid JSON|the DeepSpeed JSON is not a mapping"):
        from_json(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        zero_config(recipe({"config": str(tmp_path / "x.json")}), compute=None, ranks=None, hidden_size=None)
    assert caught.value.code == "path-missing"


def test_the_file_takes_the_place_of_the_keys() -> None:
    with pytest.raises(RecipeError) as caught:
        recipe({"config": "ds.json", "stage": 3})
    assert caught.value.code == "conflicting-keys"


@pytest.mark.parametrize("stage", [1, 2])
def test_state_on_disk_needs_stage_3(stage: int) -> None:
    """In stages 1 and 2 DeepSpeed takes `nvme` for `cpu`, without a word."""
    with pytest.raises(RecipeError) as caught:
        recipe({"stage": stage, "offload_optimizer": "nvme", "nvme_path": "/fast"})
    assert caught.value.code == "conflicting-keys"
