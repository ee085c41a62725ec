"""Names, values and defaults of axolotl, TRL and ms-swift, from which `other_commands.py` makes commands."""

from __future__ import annotations

from typing import Any

MODEL = ("model", "model_name_or_path", "base_model", "model_id_or_path")
DATA = ("dataset", "dataset_name", "datasets", "data", "train_file", "data_path", "dataset_mixer",
         "pretraining_dataset")  # fmt: skip
EVALUATION = ("val_dataset", "test_datasets", "val_file")
PREFERENCES = frozenset(("dpo", "kto", "orpo", "simpo", "ipo"))
STAGES = {"pt": "pretrain", "sft": "sft", "rm": "reward", **dict.fromkeys(PREFERENCES, "preference")}
LOSSES = ("sigmoid", "hinge", "ipo")
# Values of `path` in axolotl that tell how the files in `data_files` are read.
READERS = frozenset(("json", "csv", "parquet", "arrow", "text"))

# Names that other_names does not contain, or contains with another meaning.
KEYS = {
    **dict.fromkeys(("rl_beta", "dpo_beta", "orpo_alpha"), "method.preference.beta"),
    **dict.fromkeys(("dpo_label_smoothing", "label_smoothing"), "method.preference.label_smoothing"),
    **dict.fromkeys(("desirable_weight", "kto_desirable_weight"), "method.preference.desirable_weight"),
    **dict.fromkeys(("undesirable_weight", "kto_undesirable_weight"), "method.preference.undesirable_weight"),
    **dict.fromkeys(("rpo_alpha", "cpo_alpha"), "method.preference.sft_weight"),
    **dict.fromkeys(("loraplus_lr_ratio", "lorap_lr_ratio"), "method.lora.plus_ratio"),
    **dict.fromkeys(("target_modules", "lora_target_modules"), "method.lora.target"),
    **dict.fromkeys(("modules_to_save", "lora_modules_to_save"), "method.lora.modules_to_save"),
    "peft_use_dora": "method.lora.dora",
    "peft_use_rslora": "method.lora.rslora",
    "center_rewards_coefficient": "method.reward.centring",
    **dict.fromkeys(("excess_length_strategy", "truncation_strategy"), "data.on_long_row"),
    "noisy_embedding_alpha": "method.sft.neftune_alpha",
    "packing": "data.packing",
    "split_dataset_ratio": "data.eval_fraction",
    "cosine_min_lr_ratio": "optim.min_learning_rate_ratio",
    # Megatron
    "lr_warmup_fraction": "optim.warmup_ratio",
    "lr_warmup_iters": "optim.warmup_steps",
    "lr_decay_style": "optim.scheduler",
    "train_iters": "optim.max_steps",
    "clip_grad": "optim.max_grad_norm",
    "adam_eps": "optim.epsilon",
    "optim": "optim.optimizer",
    "seed": "seed",
    # LLaMA-Factory's deepspeed, resume_from_checkpoint, … have another meaning.
    "deepspeed": "",
    "resume_from_checkpoint": "",
    "auto_resume_from_checkpoints": "",
    "template": "",
    "chat_template": "",
    "report_to": "",
    "model_type": "",
}
COUNTS = frozenset((
    "data.max_length", "data.eval_rows", "batch.per_device", "batch.accumulate", "optim.max_steps",
    "method.lora.rank", "checkpoint.every_steps", "checkpoint.keep", "eval.every_steps", "track.every_steps",
))  # fmt: skip
SWITCHES = frozenset((
    "data.packing", "memory.gradient_checkpointing", "method.lora.dora", "method.lora.rslora", "checkpoint.best",
))  # fmt: skip
LISTS = frozenset(("method.lora.target", "method.lora.modules_to_save"))
SCHEDULERS = {
    "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
    **{name: name for name in ("linear", "cosine", "constant")},
}
LONG_ROWS = {
    **dict.fromkeys(("drop", "delete"), "drop"),
    **dict.fromkeys(("truncate", "right"), "truncate"),
    "raise": "fail",
}
OPTIMIZERS = {
    **dict.fromkeys(("adamw", "adamw_torch", "adamw_torch_fused", "adamw_torch_npu_fused", "adamw_hf"), "adamw"),
    **{name: name for name in ("adafactor", "muon", "sgd")},
}
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# Switches that choose one of several values.
CHOICES = {
    "train_on_inputs": {"data.loss_on": "all"},
    "assistant_only_loss": {"data.loss_on": "assistant"},
    "completion_only_loss": {"data.loss_on": "assistant"},
    "use_dynamic_finetuning": {"method.sft.loss": "dft"},
    "enable_dft_loss": {"method.sft.loss": "dft"},
    "use_eaft": {"method.sft.loss": "eaft"},
}
# Quantisation of the base model to four bits.
QUANTISATION = frozenset((
    "load_in_4bit", "quant_method", "quant_bits", "use_bnb_nested_quant", "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage",
))  # fmt: skip
# ms-swift's names of its own DeepSpeed configurations.
ZERO = {
    f"zero{stage}{offloads}": {
        "parallel.strategy": "deepspeed",
        "parallel.deepspeed.stage": stage,
        **({"parallel.deepspeed.offload_optimizer": "cpu"} if offloads else {}),
        **({"parallel.deepspeed.offload_param": "cpu"} if offloads and stage == 3 else {}),
    }
    for stage in (1, 2, 3)
    for offloads in ("", "_offload")
}

# Defaults of a configuration, for keys to which `init` writes another value.
ALWAYS: dict[str, Any] = {
    "data.eval_fraction": 0, "batch.per_device": 1, "batch.accumulate": 1, "optim.warmup_ratio": 0,
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "axolotl": {
        "data.max_length": 512, "data.on_long_row": "drop", "optim.epochs": 1, "optim.scheduler": "cosine",
        "optim.warmup_ratio": 0.03,
    },
    "TRL": {
        "data.max_length": 1024, "batch.per_device": 8, "optim.epochs": 3, "optim.scheduler": "linear",
        "method.lora.rank": 16, "method.lora.alpha": 32, "method.lora.dropout": 0.05,
        # PEFT's default for most models; others have no modules of these names.
        "method.lora.target": "[q_proj,v_proj]",
    },
    "ms-swift": {
        "data.on_long_row": "drop", "optim.epochs": 3, "optim.scheduler": "cosine", "optim.weight_decay": 0.1,
        "optim.beta2": 0.95,
        "method.lora.rank": 8, "method.lora.alpha": 32, "method.lora.dropout": 0.05,
    },
}  # fmt: skip
TRL_RATES = {"preference": "1e-6", "reward": "1e-4"}
SECTIONS = ("run_dir", "model", "data", "method", "optim", "batch", "precision", "memory", "parallel", "checkpoint",
            "eval", "track", "seed")  # fmt: skip
# Switch -> key and value where it is false.
VALUES_IF_OFF = {
    "bf16": ("precision", "fp32"),
    "completion_only_loss": ("data.loss_on", "all"),
    "gradient_checkpointing": ("memory.gradient_checkpointing", "false"),
    **dict.fromkeys(("packing", "sample_packing"), ("data.packing", "false")),
}
# Switches that are on by default in these tools, and have no key here.
ON_BY_DEFAULT = (
    "dataset_shuffle", "train_dataloader_shuffle", "shuffle_merged_datasets", "enable_thinking", "use_chat_template",
    "disable_dropout",
)  # fmt: skip
# The first counts only where the second is `steps`.
STEPS = {"save_steps": "save_strategy", "eval_steps": "eval_strategy"}
# Keys that other parts of the commands express, or that have no effect on the training.
EXPRESSED_ELSEWHERE = frozenset((
    *MODEL, *DATA, *EVALUATION, "adapter", "train_type", "tuner_type", "sft_type", "use_peft", "rl", "rlhf_type",
    "stage", "task_type", "reward_model", "output_dir", "bf16", "fp16", "torch_dtype", "dtype", "system",
    "lora_target_linear", "tool", "do_train", "do_eval", "strict", "debug", "tokenizer_type", "is_llama_derived_model",
    "is_mistral_derived_model", "is_qwen_derived_model", "is_falcon_derived_model", "flash_attention",
    "sdp_attention", "xformers_attention", "attn_impl", "attn_implementation", "use_flash_attention_2",
    "use_flash_attn", "tf32", "dataset_prepared_path", "dataset_processes", "dataset_num_proc",
    "preprocessing_num_workers", "load_from_cache_file", "eval_sample_packing", "pad_to_sequence_len",
    "remove_unused_columns", "save_safetensors", "save_only_model", "overwrite_output_dir", "ddp_timeout",
    "ddp_find_unused_parameters", "gradient_checkpointing_kwargs", "per_device_eval_batch_size", "eval_batch_size",
    "run_name", "logging_dir", "logging_first_step", "log_level", "local_rank", "model_type", "use_hf",
    "lora_task_type", "padding_free", "fsdp_version", "dataset_config", "dataset_train_split", "save_strategy",
    "eval_strategy",
))  # fmt: skip
