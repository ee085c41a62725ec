"""Configurations in sections, of torchtune, verl, MindFormers and Unsloth: the commands that train here instead.

What a key has no counterpart for, or what needs the tool's own defaults, is not guessed: the answer says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import value_at

# Path in the file -> key here, for values that mean the same.
_TORCHTUNE = {
    "tokenizer.max_seq_len": "data.max_length",
    "dataset.packed": "data.packing",
    "model.lora_rank": "method.lora.rank",
    "model.lora_alpha": "method.lora.alpha",
    "model.lora_dropout": "method.lora.dropout",
    "optimizer.lr": "optim.learning_rate",
    "optimizer.weight_decay": "optim.weight_decay",
    "lr_scheduler.num_warmup_steps": "optim.warmup_steps",
    "clip_grad_norm": "optim.max_grad_norm",
    "epochs": "optim.epochs",
    "batch_size": "batch.per_device",
    "gradient_accumulation_steps": "batch.accumulate",
    "seed": "seed",
}
_VERL = {
    "data.max_length": "data.max_length",
    "data.micro_batch_size_per_gpu": "batch.per_device",
    "model.lora_rank": "method.lora.rank",
    "model.lora_alpha": "method.lora.alpha",
    "optim.lr": "optim.learning_rate",
    "optim.weight_decay": "optim.weight_decay",
    "optim.warmup_steps_ratio": "optim.warmup_ratio",
    "optim.lr_warmup_steps_ratio": "optim.warmup_ratio",
    "optim.clip_grad": "optim.max_grad_norm",
    "trainer.total_epochs": "optim.epochs",
    "trainer.total_training_steps": "optim.max_steps",
    "trainer.seed": "seed",
}
_MINDFORMERS = {
    "optimizer.weight_decay": "optim.weight_decay",
    "lr_schedule.learning_rate": "optim.learning_rate",
    "lr_schedule.warmup_steps": "optim.warmup_steps",
    "lr_schedule.warmup_ratio": "optim.warmup_ratio",
    "runner_config.epochs": "optim.epochs",
    "runner_config.batch_size": "batch.per_device",
    "runner_config.gradient_accumulation_steps": "batch.accumulate",
    "model.model_config.pet_config.lora_rank": "method.lora.rank",
    "model.model_config.pet_config.lora_alpha": "method.lora.alpha",
    "model.model_config.pet_config.lora_dropout": "method.lora.dropout",
    "seed": "seed",
}
_UNSLOTH = {
    "training.max_seq_length": "data.max_length",
    "training.packing": "data.packing",
    "lora.lora_r": "method.lora.rank",
    "lora.lora_alpha": "method.lora.alpha",
    "lora.lora_dropout": "method.lora.dropout",
    "lora.use_rslora": "method.lora.rslora",
    "lora.use_dora": "method.lora.dora",
    "training.learning_rate": "optim.learning_rate",
    "training.weight_decay": "optim.weight_decay",
    "training.warmup_steps": "optim.warmup_steps",
    "training.num_epochs": "optim.epochs",
    "training.max_steps": "optim.max_steps",
    "training.batch_size": "batch.per_device",
    "training.gradient_accumulation_steps": "batch.accumulate",
    "training.random_seed": "seed",
}


_NO_TRAINING = "not-a-training-recipe"


@dataclass(frozen=True)
class _Tool:
    name: str
    keys: Mapping[str, str]
    models: tuple[str, ...]
    """Paths of the model: a directory in Hugging Face format, or a hub id."""
    data: tuple[str, ...]


_TOOLS = (
    _Tool("torchtune", _TORCHTUNE, ("checkpointer.checkpoint_dir",), ("dataset.data_files", "dataset.source")),
    _Tool(
        "verl", _VERL, ("model.partial_pretrain", "model.path", "actor_rollout_ref.model.path"), ("data.train_files",)
    ),
    _Tool("MindFormers", _MINDFORMERS, ("pretrained_model_dir",), ()),
    _Tool("Unsloth", _UNSLOTH, ("model",), ("data.local_dataset", "data.dataset")),
)


def refuse_sections(values: Mapping[str, Any], source: str) -> None:
    """Raise RecipeError for a configuration of one of these tools, with the commands that train here instead."""
    tool = _tool_of(values)
    if tool is None:
        return
    if (use := _not_training(values)) is not None:
        what, remedy, code = use
    else:
        what, remedy, code = "", _commands(values, tool), "recipe-of-another-tool"
    raise RecipeError(f"this is a configuration of {tool.name}{what}", code=code, remedy=remedy, where=source)


def _tool_of(values: Mapping[str, Any]) -> _Tool | None:
    torchtune, verl, mindformers, unsloth = _TOOLS
    if any(
        isinstance(section, dict) and str(section.get("_component_", "")).startswith("torchtune.")
        for section in values.values()
    ):
        return torchtune
    if _find(values, "data.train_files") is not None and "trainer" in values:
        return verl
    if "actor_rollout_ref" in values:
        return verl
    if "runner_config" in values or ("run_mode" in values and "trainer" in values):
        return mindformers
    if isinstance(values.get("training"), dict) and (isinstance(values.get("model"), str) or "lora" in values):
        return unsloth
    return None


def _not_training(values: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """What else it is for, what to do, and the error's code; None for training."""
    loss = str(_find(values, "loss._component_") or "").lower()
    if "actor_rollout_ref" in values or "ppo" in loss or "grpo" in loss or "reward_and_value_model" in values:
        what = " for reinforcement learning, which is not supported in this version"
        remedy = (
            "method.stage: preference is the nearest, with its losses sigmoid (DPO), kto, orpo, simpo, ipo and hinge"
        )
        return what, remedy, "not-in-this-version"
    if "_component_" in (values.get("model") or {}) and "optimizer" not in values:
        return " that does not train", "ascendtune chat MODEL, or ascendtune generate MODEL PROMPT", _NO_TRAINING
    if values.get("run_mode") in ("predict", "export", "eval"):
        what = f" that does not train (run_mode: {values['run_mode']})"
        return what, "ascendtune generate MODEL PROMPT, with a model in Hugging Face format", _NO_TRAINING
    return None


def _commands(values: Mapping[str, Any], tool: _Tool) -> str:
    found = {here: value for path, here in tool.keys.items() if (value := _value(_find(values, path))) is not None}
    is_adapted = _is_adapted(values)
    changes = {
        key: value
        for key, value in found.items()
        if not (key.startswith("method.lora.") and not is_adapted)
        # What is 0 is not set, or the default.
        and not (key in ("optim.max_steps", "optim.warmup_steps", "optim.max_grad_norm") and float(value) <= 0)
    }
    for key, replaced in (("optim.max_steps", "optim.epochs"), ("optim.warmup_steps", "optim.warmup_ratio")):
        if key in changes:
            changes.pop(replaced, None)
    model = next((_text(each) for path in tool.models if (each := _find(values, path))), "MODEL")
    data = next((names for path in tool.data if (names := _names(_find(values, path)))), ["DATA"])
    init = ["ascendtune", "init", "--model", model, *(word for name in data for word in ("--data", name))]
    if "dpo" in str(_find(values, "loss._component_")).lower():
        init += ["--stage", "preference"]
    init += ["--tuner", "lora"] if is_adapted else []
    train = ["ascendtune", "train", "recipe.yaml", *(f"{key}={value}" for key, value in changes.items())]
    rest = "all else is as `init` writes it, whatever the file or the tool's defaults say: compare both"
    return f"{shlex.join(init)}, then {shlex.join(train)}; {rest}"


def _is_adapted(values: Mapping[str, Any]) -> bool:
    component = str(_find(values, "model._component_") or "")
    rank = _find(values, "model.lora_rank") if "trainer" in values else None
    return (
        "lora_" in component
        or (isinstance(rank, int) and rank > 0)
        or _find(values, "model.model_config.pet_config.pet_type") == "lora"
        or (isinstance(values.get("training"), dict) and values["training"].get("training_type", "lora") == "lora")
    )


def _find(values: Mapping[str, Any], path: str) -> Any:
    return value_at(values, *path.split("."))


def _value(found: Any) -> str | None:
    """As it is written on the command line; None for what is no number and no switch."""
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, str):
        # YAML 1.1 reads 1e-5 as text.
        try:
            float(found)
        except ValueError:
            return None
    return str(found) if isinstance(found, int | float | str) else None


def _text(found: Any) -> str:
    """Without names that the tool would fill in."""
    return found if isinstance(found, str) and "${" not in found else "MODEL"


def _names(found: Any) -> list[str]:
    names = found if isinstance(found, list) else [found]
    return [each for each in names if isinstance(each, str) and each and "${" not in each and each != "json"]
