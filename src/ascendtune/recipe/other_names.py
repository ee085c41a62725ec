"""Names of recipe keys in other tools: LLaMA-Factory, TRL, ms-swift and axolotl."""

from __future__ import annotations

import shlex

from ascendtune.recipe.llamafactory.keys import TRANSLATED

_OTHERS = {
    # TRL and transformers' TrainingArguments, where LLaMA-Factory's name differs
    "max_length": "data.max_length",
    "max_seq_length": "data.max_length",
    "dataset_name": "data.train",
    "eval_dataset_name": "data.eval",
    "beta": "method.preference.beta",
    "loss_type": "method.preference.loss",
    "lora_r": "method.lora.rank",
    "lora_target_modules": "method.lora.target",
    "lora_modules_to_save": "method.lora.modules_to_save",
    "use_peft": "method.tuner",
    "gradient_checkpointing": "memory.gradient_checkpointing",
    "attn_implementation": "model.attention",
    "torch_dtype": "model.dtype",
    "assistant_only_loss": "data.loss_on",
    "lr": "optim.learning_rate",
    "batch_size": "batch.per_device",
    # ms-swift
    "train_type": "method.tuner",
    "rlhf_type": "method.preference.loss",
    "target_modules": "method.lora.target",
    "model_type": "model.path",
    "system": "data.train.0.system",
    "max_epochs": "optim.epochs",
    # axolotl
    "base_model": "model.path",
    "datasets": "data.train",
    "test_datasets": "data.eval",
    "val_set_size": "data.eval_fraction",
    "sequence_len": "data.max_length",
    "sample_packing": "data.packing",
    "chat_template": "data.template",
    "train_on_inputs": "data.loss_on",
    "micro_batch_size": "batch.per_device",
    "num_epochs": "optim.epochs",
    "lr_scheduler": "optim.scheduler",
    "optimizer": "optim.optimizer",
    "adapter": "method.tuner",
    "lora_target_linear": "method.lora.target",
    "rl": "method.stage",
    "flash_attention": "model.attention",
    "auto_resume_from_checkpoints": "checkpoint.resume",
}
# `do_train` has no counterpart: the table contains a sentence instead.
_KEYS = {name: key.becomes for name, key in TRANSLATED.items() if " " not in key.becomes.replace(", ", "")} | _OTHERS


def native_key(name: str) -> str | None:
    """The native key, or keys with commas between them, for a name of another tool; None for other names."""
    return _KEYS.get(name)


_PREFERENCE = "method.stage=preference"
_LOSSES = {
    "dpo": _PREFERENCE,
    **{name: f"{_PREFERENCE} method.preference.loss={name}" for name in ("kto", "orpo", "simpo", "ipo")},
}
_STAGES = {"pt": "method.stage=pretrain", "sft": "method.stage=sft", "rm": "method.stage=reward"}
_TUNERS = {name: f"method.tuner={name}" for name in ("full", "freeze", "lora", "oft")}
# Option of another tool -> its value -> overrides, for values whose native names differ.
_OVERRIDES = {
    "stage": _STAGES | _LOSSES,
    "rlhf_type": _STAGES | _LOSSES,
    "rl": _LOSSES,
    "finetuning_type": _TUNERS,
    "train_type": _TUNERS,
    "tuner_type": _TUNERS,
    "adapter": _TUNERS,
    "use_peft": {"true": "method.tuner=lora", "false": "method.tuner=full"},
    "bf16": {"true": "precision=bf16", "false": "precision=fp32"},
    "fp16": {"true": "precision=fp16", "false": "precision=fp32"},
    "report_to": {
        "none": "track.tensorboard=false",
        "tensorboard": "track.tensorboard=true",
        **{name: f"'track.send_to=[{name}]'" for name in ("wandb", "swanlab", "mlflow", "trackio")},
    },
}


def native_overrides(name: str, value: str) -> str | None:
    """`key=value`, once or more, for an option of another tool; None if the option or its value is not known.

    Args:
        name: with underscores, such as `report_to`.
    """
    if name == "deepspeed":
        config = value if value.endswith(".json") else "FILE.json"
        return shlex.join(["parallel.strategy=deepspeed", f"parallel.deepspeed.config={config}"])
    return _OVERRIDES.get(name, {}).get(value.lower())


REMEDIES = {name: f"did you mean {' or '.join(repr(each) for each in key.split(', '))}?" for name, key in _KEYS.items()}
"""Name in another tool -> the remedy where it is an unknown key."""
