"""LLaMA-Factory's keys with native counterparts: their types, their defaults, and the native keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ascendtune.recipe.sections import BITSANDBYTES_OPTIMIZERS

Kind = (
    Literal["text", "whole number", "number", "numbers", "truth", "names", "text or truth", "text or mapping"]
    | tuple[str, ...]
)
"""`names` is a list, or text with commas; a tuple contains the valid values."""


@dataclass(frozen=True)
class Key:
    """One of LLaMA-Factory's keys."""

    kind: Kind
    default: Any
    becomes: str
    """The counterpart: one native key, or several, or a sentence."""
    copied: bool = False
    """Whether the value is copied to `becomes` unchanged."""
    filled: bool = False
    """Whether the default is written if the recipe does not set the key, because the native default differs."""


_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adamw_torch_npu_fused", "adamw_hf", "sgd", "adafactor")
_PREF_LOSSES = ("sigmoid", "hinge", "ipo", "kto_pair", "orpo", "simpo", "kto")

NOT_OFFERED = {("stage", "ppo"), ("pref_loss", "kto_pair"), ("pref_loss", "kto"), ("flash_attn", "off")}
"""Known values of keys that are refused with their own sentence, or have another name now."""

OTHER_VALUES = {
    ("stage", "orpo"): "use stage: dpo and pref_loss: orpo",
    ("pref_loss", "dpo"): "use sigmoid, which is DPO's own loss",
}
"""Former or mistaken values of a key -> the remedy."""

UNSUPPORTED_VALUES = {
    ("optim", name): (
        f"optim: {name}: optimizers of bitsandbytes are not supported in this version",
        "write adamw_torch; adafactor needs less memory, and finetuning_type: lora needs the least",
    )
    for name in BITSANDBYTES_OPTIMIZERS
}
"""Values that LLaMA-Factory supports and this version does not -> their meaning, and the remedy."""

TRANSLATED: dict[str, Key] = {
    # Model.
    "model_name_or_path": Key("text", None, "model.path"),
    "model_revision": Key("text", "main", "model.revision"),
    "trust_remote_code": Key("truth", False, "model.trust_remote_code", copied=True),
    "flash_attn": Key(("auto", "disabled", "sdpa", "fa2", "fa3", "off"), "auto", "model.attention"),
    "train_from_scratch": Key("truth", False, "model.init"),
    "add_tokens": Key("names", None, "model.new_tokens"),
    "add_special_tokens": Key("names", None, "model.new_tokens"),
    "resize_vocab": Key("truth", False, "method.lora.modules_to_save, method.oft.modules_to_save"),
    "quantization_bit": Key("whole number", None, "model.quantization"),
    "quantization_method": Key(("bnb",), "bnb", "model.quantization"),
    "quantization_type": Key(("nf4", "fp4"), "nf4", "model.quantization"),
    "double_quantization": Key("truth", True, "model.double_quantization"),
    "disable_gradient_checkpointing": Key("truth", False, "memory.gradient_checkpointing"),
    # Data.
    "dataset": Key("names", None, "data.train"),
    "eval_dataset": Key("names", None, "data.eval"),
    "dataset_dir": Key("text", "data", "data.train, data.eval: path"),
    "max_samples": Key("whole number", None, "data.train, data.eval: limit"),
    "default_system": Key("text", None, "data.train, data.eval: system"),
    "val_size": Key("number", 0.0, "data.eval_fraction, data.eval_rows"),
    "template": Key("text", None, "data.template"),
    "cutoff_len": Key("whole number", 2048, "data.max_length"),
    "packing": Key("truth", None, "data.packing"),
    "neat_packing": Key("truth", False, "data.packing"),
    "train_on_prompt": Key("truth", False, "data.loss_on"),
    "enable_thinking": Key("truth", True, "data.template"),
    "preserve_thinking": Key("truth", False, "data.template"),
    "preprocessing_num_workers": Key("whole number", None, "data.processes", copied=True),
    # Method.
    "stage": Key(("pt", "sft", "rm", "ppo", "dpo", "kto"), "sft", "method.stage"),
    "finetuning_type": Key(("lora", "oft", "freeze", "full"), "lora", "method.tuner"),
    "lora_rank": Key("whole number", 8, "method.lora.rank", copied=True),
    "lora_alpha": Key("number", None, "method.lora.alpha", copied=True),
    "lora_dropout": Key("number", 0.0, "method.lora.dropout"),
    "lora_target": Key("names", "all", "method.lora.target"),
    "additional_target": Key("names", None, "method.lora.modules_to_save, method.oft.modules_to_save"),
    "adapter_name_or_path": Key("names", None, "method.lora.start_from, method.oft.start_from"),
    "use_rslora": Key("truth", False, "method.lora.rslora", copied=True),
    "use_dora": Key("truth", False, "method.lora.dora", copied=True),
    "pissa_init": Key("truth", False, "method.lora.init"),
    "loraplus_lr_ratio": Key("number", None, "method.lora.plus_ratio", copied=True),
    "oft_rank": Key("whole number", 0, "method.oft.rank"),
    "oft_block_size": Key("whole number", 32, "method.oft.block_size"),
    "oft_target": Key("names", "all", "method.oft.target"),
    "module_dropout": Key("number", 0.0, "method.oft.module_dropout", copied=True),
    "freeze_trainable_layers": Key("whole number", 2, "method.freeze.last_layers, method.freeze.first_layers"),
    "use_llama_pro": Key("truth", False, "method.freeze.spread_layers"),
    "freeze_trainable_modules": Key("names", "all", "method.freeze.modules"),
    "freeze_extra_modules": Key("names", None, "method.freeze.extra", copied=True),
    "pref_loss": Key(_PREF_LOSSES, "sigmoid", "method.preference.loss"),
    "pref_beta": Key("number", 0.1, "method.preference.beta", copied=True),
    "pref_ftx": Key("number", 0.0, "method.preference.sft_weight", copied=True),
    "dpo_label_smoothing": Key("number", 0.0, "method.preference.label_smoothing", copied=True),
    "simpo_gamma": Key("number", 0.5, "method.preference.simpo_gamma", copied=True),
    "kto_chosen_weight": Key("number", 1.0, "method.preference.desirable_weight", copied=True),
    "kto_rejected_weight": Key("number", 1.0, "method.preference.undesirable_weight", copied=True),
    "use_dft_loss": Key("truth", False, "method.sft.loss"),
    "use_eaft_loss": Key("truth", False, "method.sft.loss"),
    "use_asft_loss": Key("truth", False, "method.sft.loss"),
    "asft_alpha": Key("number", 0.1, "method.sft.asft_alpha", copied=True),
    "eaft_alpha": Key("number", 1.0, "method.sft.eaft_alpha", copied=True),
    "neftune_noise_alpha": Key("number", None, "method.sft.neftune_alpha"),
    "ref_model": Key("text", None, "method.preference.reference"),
    # Optimization and duration.
    "learning_rate": Key("number", 5e-5, "optim.learning_rate", copied=True, filled=True),
    "lr_scheduler_type": Key("text", "linear", "optim.scheduler"),
    "lr_scheduler_kwargs": Key("text or mapping", None, "optim.min_learning_rate_ratio"),
    "warmup_ratio": Key("number", None, "optim.warmup_ratio"),
    "warmup_steps": Key("number", 0, "optim.warmup_steps"),
    "num_train_epochs": Key("number", 3.0, "optim.epochs"),
    "max_steps": Key("whole number", -1, "optim.max_steps"),
    "optim": Key(_OPTIMIZERS, "adamw_torch_fused", "optim.optimizer"),
    "use_muon": Key("truth", False, "optim.optimizer"),
    "weight_decay": Key("number", 0.0, "optim.weight_decay", copied=True),
    "adam_beta1": Key("number", 0.9, "optim.beta1", copied=True),
    "adam_beta2": Key("number", 0.999, "optim.beta2", copied=True),
    "adam_epsilon": Key("number", 1e-8, "optim.epsilon", copied=True),
    "max_grad_norm": Key("number", 1.0, "optim.max_grad_norm"),
    "per_device_train_batch_size": Key("whole number", 8, "batch.per_device", copied=True, filled=True),
    "gradient_accumulation_steps": Key("whole number", 1, "batch.accumulate", copied=True, filled=True),
    "seed": Key("whole number", 42, "seed", copied=True),
    "full_determinism": Key("truth", False, "deterministic", copied=True),
    # Precision and parallelism.
    "bf16": Key("truth", False, "precision"),
    "fp16": Key("truth", False, "precision"),
    "pure_bf16": Key("truth", False, "precision, model.dtype"),
    "deepspeed": Key("text or mapping", None, "parallel.strategy, parallel.deepspeed"),
    "fsdp": Key("names", None, "parallel.strategy, parallel.fsdp"),
    "fsdp_config": Key("text or mapping", None, "parallel.strategy, parallel.fsdp"),
    # Checkpoints and reports.
    "do_train": Key("truth", False, "needed: without it LLaMA-Factory trains nothing"),
    "output_dir": Key("text", "trainer_output", "run_dir, name"),
    "logging_steps": Key("number", 500, "track.every_steps", copied=True, filled=True),
    "save_steps": Key("number", 500, "checkpoint.every_steps"),
    "save_strategy": Key(("steps", "epoch", "no", "best"), "steps", "checkpoint.every_steps"),
    "save_total_limit": Key("whole number", None, "checkpoint.keep"),
    "resume_from_checkpoint": Key("text or truth", None, "checkpoint.resume"),
    "eval_strategy": Key(("no", "steps", "epoch"), "no", "eval.every_steps"),
    "eval_steps": Key("number", None, "eval.every_steps"),
    "load_best_model_at_end": Key("truth", False, "checkpoint.best", copied=True),
    "early_stopping_steps": Key("whole number", None, "eval.early_stop.patience", copied=True),
    "report_to": Key("names", "none", "track.tensorboard, track.send_to"),
    "project": Key("text", "huggingface", "track.project"),
    "use_swanlab": Key("truth", False, "track.send_to"),
    "swanlab_project": Key("text", "llamafactory", "track.project"),
    "swanlab_mode": Key(("cloud", "local"), "cloud", "track.send_to"),
}

ALIASES = {
    "evaluation_strategy": "eval_strategy",
    "dpo_beta": "pref_beta",
    "dpo_loss": "pref_loss",
    "dpo_ftx": "pref_ftx",
    "orpo_beta": "pref_beta",
    "name_module_trainable": "freeze_trainable_modules",
    "num_layer_trainable": "freeze_trainable_layers",
    "new_special_tokens": "add_special_tokens",
    "neft_alpha": "neftune_noise_alpha",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "ref_model_checkpoint": "ref_model_adapters",
    "sft_packing": "packing",
    "system_prompt": "default_system",
}
"""Older names that are still in use."""
