"""Configurations of torchtune, verl, MindFormers and Unsloth are recognised, and answered."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe

TORCHTUNE: dict[str, Any] = {
    "output_dir": "/x",
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": None},
    "model": {"_component_": "torchtune.models.llama3_1.lora_llama3_1_8b", "lora_rank": 8, "lora_alpha": 16},
    "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": "/x/Llama"},
    "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": False},
    "seed": None,
    "batch_size": 2,
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": "3e-4", "weight_decay": 0.01},
    "lr_scheduler": {"num_warmup_steps": 100},
    "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
    "epochs": 1,
    "gradient_accumulation_steps": 8,
    "clip_grad_norm": None,
}
VERL: dict[str, Any] = {
    "data": {"train_batch_size": 256, "micro_batch_size_per_gpu": 4, "train_files": "d.parquet", "max_length": 1024},
    "model": {"partial_pretrain": "org/m", "lora_rank": 32, "lora_alpha": 16},
    "optim": {"lr": "1e-5", "clip_grad": 1.0},
    "trainer": {"total_epochs": 4, "total_training_steps": None},
}
MINDFORMERS: dict[str, Any] = {
    "run_mode": "finetune",
    "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "llm"},
    "pretrained_model_dir": "qwen",
    "runner_config": {"epochs": 2, "batch_size": 1},
    "lr_schedule": {"type": "CosineWithWarmUpLR", "learning_rate": "1.e-6", "warmup_ratio": 0},
    "model": {"model_config": {"compute_dtype": "bfloat16"}},
    "seed": 0,
}
UNSLOTH: dict[str, Any] = {
    "model": "unsloth/Qwen3-0.6B",
    "data": {"dataset": "tatsu-lab/alpaca", "format_type": "auto"},
    "training": {"training_type": "lora", "max_seq_length": 2048, "max_steps": 0, "num_epochs": 3, "batch_size": 2},
    "lora": {"lora_r": 64, "target_modules": "q_proj,k_proj"},
    "logging": {"enable_wandb": False},
}


def answer(directory: Path, values: dict[str, Any]) -> RecipeError:
    file = directory / "config.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    with pytest.raises(RecipeError) as caught:
        Recipe.load(file)
    assert caught.value.where == str(file)
    return caught.value


@pytest.mark.parametrize(
    ("values", "tool", "init", "changes"),
    [
        (
            TORCHTUNE,
            "torchtune",
            "ascendtune init --model /x/Llama --data DATA --tuner lora",
            "data.packing=false method.lora.rank=8 method.lora.alpha=16 optim.learning_rate=0.0003 "
            "optim.weight_decay=0.01 optim.warmup_steps=100 optim.epochs=1 batch.per_device=2 batch.accumulate=8",
        ),
        (
            VERL,
            "verl",
            "ascendtune init --model org/m --data d.parquet --tuner lora",
            "data.max_length=1024 batch.per_device=4 method.lora.rank=32 method.lora.alpha=16 "
            "optim.learning_rate=1e-05 optim.max_grad_norm=1.0 optim.epochs=4",
        ),
        (
            MINDFORMERS,
            "MindFormers",
            "ascendtune init --model qwen --data DATA",
            "optim.learning_rate=1.e-6 optim.warmup_ratio=0 optim.epochs=2 batch.per_device=1 seed=0",
        ),
        (
            UNSLOTH,
            "Unsloth",
            "ascendtune init --model unsloth/Qwen3-0.6B --data tatsu-lab/alpaca --tuner lora",
            "data.max_length=2048 method.lora.rank=64 optim.epochs=3 batch.per_device=2",
        ),
    ],
    ids=["torchtune", "verl", "MindFormers", "Unsloth"],
)
def test_configuration_is_answered_with_commands(
    tmp_path: Path, values: dict[str, Any], tool: str, init: str, changes: str
) -> None:
    error = answer(tmp_path, values)
    assert error.code == "recipe-of-another-tool" and tool in error.what
    commands, _, _ = error.remedy.partition("; all else")
    assert commands == f"{init}, then ascendtune train recipe.yaml {changes}"
    native = tmp_path / "recipe.yaml"
    native.write_text("model: {path: m}\ndata: {train: d}\n")
    assert Recipe.load(native, shlex.split(changes))


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"actor_rollout_ref": {}, "data": {"train_files": "d"}, "trainer": {}}, "not-in-this-version"),
        (TORCHTUNE | {"loss": {"_component_": "torchtune.dev.rl.loss.GRPOLoss"}}, "not-in-this-version"),
        ({key: value for key, value in TORCHTUNE.items() if key != "optimizer"}, "not-a-training-recipe"),
        (MINDFORMERS | {"run_mode": "predict"}, "not-a-training-recipe"),
    ],
    ids=["verl PPO", "torchtune GRPO", "torchtune generation", "MindFormers predict"],
)  # fmt: skip
def test_what_is_for_something_else_is_not_answered_with_a_training(
    tmp_path: Path, values: dict[str, Any], code: str
) -> None:
    error = answer(tmp_path, values)
    assert error.code == code and "ascendtune init" not in error.remedy


def test_names_that_the_tool_fills_in_are_left_to_the_user(tmp_path: Path) -> None:
    values = TORCHTUNE | {
        "checkpointer": {"checkpoint_dir": "${base_dir}/m"},
        "dataset": {"_component_": "torchtune.datasets.chat_dataset", "source": "json", "data_files": "rows.json"},
    }
    assert answer(tmp_path, values).remedy.startswith("ascendtune init --model MODEL --data rows.json --tuner lora, ")


def test_preferences_keep_their_stage(tmp_path: Path) -> None:
    values = TORCHTUNE | {"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss"}}
    assert "--stage preference" in answer(tmp_path, values).remedy
