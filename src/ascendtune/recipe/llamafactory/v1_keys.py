"""The keys of LLaMA-Factory's v1: those that are translated, have no effect here, or are refused."""

from __future__ import annotations

from typing import Any

from ascendtune.recipe.llamafactory.keys import Key
from ascendtune.recipe.llamafactory.unsupported import UnsupportedKey

PLUGINS = ("init_config", "peft_config", "kernel_config", "quant_config", "dist_config", "optim_config",
           "lr_scheduler_config")  # fmt: skip
"""Keys whose value is a mapping with a `name`; here their inner keys are written `peft_config.r`."""

ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flash_attention_2": "auto"}
"""v1's value -> the native one."""

TRANSLATED: dict[str, Key] = {
    "model": Key("text", "Qwen/Qwen3-4B-Instruct-2507", "model.path", copied=True, filled=True),
    "trust_remote_code": Key("truth", False, "model.trust_remote_code", copied=True),
    "flash_attn": Key(tuple(ATTENTION), "sdpa", "model.attention"),
    "template": Key("text", None, "data.template"),
    "quant_config.name": Key(("auto", "bnb"), None, "model.quantization"),
    "quant_config.quantization_bit": Key("whole number", None, "model.quantization"),
    "quant_config.quantization_type": Key(("nf4", "fp4"), "nf4", "model.quantization"),
    "quant_config.double_quantization": Key("truth", True, "model.double_quantization"),
    "peft_config.name": Key(("lora", "freeze"), None, "method.tuner"),
    "peft_config.r": Key("whole number", 8, "method.lora.rank"),
    "peft_config.lora_alpha": Key("number", 16, "method.lora.alpha"),
    "peft_config.lora_dropout": Key("number", 0.05, "method.lora.dropout"),
    "peft_config.target_modules": Key("names", ["all"], "method.lora.target"),
    "peft_config.use_rslora": Key("truth", False, "method.lora.rslora", copied=True),
    "peft_config.use_dora": Key("truth", False, "method.lora.dora", copied=True),
    "peft_config.modules_to_save": Key("names", None, "method.lora.modules_to_save", copied=True),
    "peft_config.adapter_name_or_path": Key("names", None, "method.lora.start_from", copied=True),
    "peft_config.freeze_trainable_layers": Key("whole number", 2, "method.freeze.last_layers, first_layers"),
    "peft_config.freeze_trainable_modules": Key("names", ["all"], "method.freeze.modules"),
    "peft_config.freeze_extra_modules": Key("names", None, "method.freeze.extra", copied=True),
    "train_dataset": Key("text", None, "data.train, method.stage"),
    "eval_dataset": Key("text", None, "data.eval"),
    "cutoff_len": Key("whole number", 2048, "data.max_length", copied=True),
    "batching_strategy": Key(
        ("normal", "padding_free", "dynamic_batching", "dynamic_padding_free"), "normal", "data.packing"
    ),
    "pref_loss": Key(("sigmoid", "orpo", "simpo"), "sigmoid", "method.preference.loss"),
    "pref_beta": Key("number", 0.1, "method.preference.beta"),
    "pref_ftx": Key("number", 0.0, "method.preference.sft_weight"),
    "simpo_gamma": Key("number", 0.5, "method.preference.simpo_gamma"),
    "dpo_label_smoothing": Key("number", 0.0, "method.preference.label_smoothing"),
    "optim_config.name": Key(("muon",), None, "optim.optimizer"),
    "optim_config.wd": Key("number", 0.1, "optim.weight_decay"),
    "optim_config.momentum": Key("number", 0.95, "optim.muon_momentum", copied=True),
    "optim_config.adamw_betas": Key("numbers", [0.9, 0.95], "optim.beta1, optim.beta2"),
    "optim_config.adamw_eps": Key("number", 1e-8, "optim.epsilon", copied=True),
    "learning_rate": Key("number", 1e-4, "optim.learning_rate", copied=True, filled=True),
    "num_train_epochs": Key("number", 3, "optim.epochs"),
    "max_steps": Key("whole number", None, "optim.max_steps"),
    "max_grad_norm": Key("number", 1.0, "optim.max_grad_norm", copied=True),
    "micro_batch_size": Key("whole number", 1, "batch.per_device", copied=True, filled=True),
    "enable_activation_checkpointing": Key("truth", True, "memory.gradient_checkpointing", copied=True, filled=True),
    "bf16": Key("truth", True, "precision"),
    "seed": Key("whole number", 42, "seed", copied=True),
    "full_determinism": Key("truth", False, "deterministic", copied=True),
    "dist_config.name": Key(("fsdp2", "deepspeed"), None, "parallel.strategy"),
    "dist_config.config_file": Key("text", None, "parallel.deepspeed.config"),
    "dist_config.reshard_after_forward": Key("truth", True, "parallel.fsdp.reshard", copied=True),
    "dist_config.offload_params": Key("truth", False, "parallel.fsdp.offload", copied=True),
    "output_dir": Key("text", None, "run_dir, name"),
    "logging_steps": Key("whole number", 1, "track.every_steps", copied=True),
    "save_steps": Key("whole number", None, "checkpoint.every_steps", copied=True),
    "save_total_limit": Key("whole number", None, "checkpoint.keep", copied=True),
    "resume_from_checkpoint": Key("text", None, "checkpoint.resume", copied=True),
}  # fmt: skip

_KERNELS = "fused operators are chosen by `kernel`, and tested before they are used"
_INFERENCE = "it is for inference"
_MERGING = "it is for merging"
_FIXED = "the layout of devices follows from parallel.strategy"
IGNORED: dict[str, tuple[Any, str]] = {
    "quant_config.compute_dtype": (None, "quantised matrices are computed with in the type of `precision`"),
    **dict.fromkeys(("kernel_config.name", "kernel_config.include_kernels", "kernel_config.chunk_size"),
                    (None, _KERNELS)),
    **dict.fromkeys(("init_config.name", "dist_config.pin_memory"), (None, "weights are loaded once, then divided")),
    "sample_backend": ("hf", _INFERENCE),
    "max_new_tokens": (128, _INFERENCE),
    "batching_workers": (16, "tokens come from a memory-mapped file: no worker has to prepare batches"),
    "dist_timeout": (18000, "data is prepared before the processes join, so the usual time-out is enough"),
    **dict.fromkeys(("cp_mode", "dist_config.cp_mode"), ("ulysses", "cp_size is 1")),
    "mp_shard_size": (None, _FIXED),
    "dp_size": (None, _FIXED),
    "save_ckpt_as_hf": (False, "a checkpoint always contains everything that a resume needs"),
    "peft_config.cast_trainable_params_to_fp32": (True, "trained weights are kept in fp32"),
    "peft_config.export_size": (5, _MERGING),
    "peft_config.infer_dtype": ("auto", _MERGING),
    "peft_config.export_legacy_format": (False, _MERGING),
    "peft_config.export_hub_model_id": (None, _MERGING),
}  # fmt: skip

_REMOVE = "remove it"
UNSUPPORTED_KEYS: dict[str, UnsupportedKey] = {
    "model_class": UnsupportedKey(
        "llm", "models that classify are not supported in this version", "use model_class: llm"
    ),
    "custom_chat_template": UnsupportedKey(
        None, "a chat template inside a recipe is not supported in this version",
        "write it into a file and give it at the start: data.template=FILE.jinja",
    ),
    "cp_size": UnsupportedKey(
        1, "context parallelism is not supported in this version",
        "remove it; data.max_length and fsdp bound the memory",
    ),
    "dist_config.cp_size": UnsupportedKey(1, "context parallelism is not supported in this version", _REMOVE),
    "mp_replicate_size": UnsupportedKey(
        1, "shards that are replicated are not supported in this version", "remove it: fsdp divides by all devices"
    ),
    "dist_config.ep_size": UnsupportedKey(
        None, "expert parallelism is not supported in this version", "use dist_config: {name: fsdp2}"
    ),
    "dist_config.ep_dispatcher": UnsupportedKey(None, "expert parallelism is not supported in this version", _REMOVE),
    "dist_config.dcp_path": UnsupportedKey(
        None, "weights in DCP's format are not supported in this version",
        "give a model in Hugging Face format as `model`",
    ),
    "global_batch_size": UnsupportedKey(
        None, "the number of micro-batches would depend on the number of devices",
        "remove it and give batch.accumulate=N at the start: micro_batch_size × N × devices is the global batch",
    ),
    "save_epochs": UnsupportedKey(
        None, "checkpoints at fractions of an epoch are not supported in this version", "use save_steps"
    ),
    "ld_alpha": UnsupportedKey(None, "this term of a preference loss is not supported in this version", _REMOVE),
    "lr_scheduler_config.name": UnsupportedKey(
        None, "v1 has no schedule of its own", "remove it and give optim.scheduler=cosine at the start"
    ),
    "optim_config.nesterov": UnsupportedKey(
        True, "Muon without Nesterov's momentum is not supported in this version", _REMOVE
    ),
    "optim_config.ns_steps": UnsupportedKey(
        5, "another number of Newton-Schulz steps is not supported in this version", _REMOVE
    ),
}  # fmt: skip
