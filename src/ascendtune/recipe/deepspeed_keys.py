"""Keys of DeepSpeed's JSON (0.19), by their treatment here. DeepSpeed ignores unknown top-level keys."""

from __future__ import annotations

from typing import Any

REPLACED = {
    "scheduler": "optim.scheduler, optim.warmup_ratio and optim.min_learning_rate_ratio",
    "amp": "precision",
    "torch_autocast": "precision",
    "curriculum_learning": "the order of rows, which the seed decides",
    "data_efficiency": "the order of rows, which the seed decides",
    "autotuning": "batch.per_device and parallel.deepspeed",
    "elasticity": "batch.per_device and batch.accumulate",
    "compression_training": "precision",
    "quantize_training": "precision",
    "nebula": "checkpoint.every_steps and checkpoint.keep",
    "datastates_ckpt": "checkpoint.every_steps and checkpoint.keep",
}
"""Sections that would replace a part of ascendtune -> the recipe keys for it."""

UNSUPPORTED = {
    "tensor_parallel": "tensor parallelism",
    "expert_parallel": "expert parallelism",
    "sequence_parallel_size": "sequence parallelism",
    "hybrid_engine": "generating while training",
    "progressive_layer_drop": "dropping layers",
    "eigenvalue": "quantised training",
    "sparse_attention": "sparse attention",
    "sparse_gradients": "sending gradients sparsely",
    "graph_harvesting": "graph harvesting",
    # ZenFlow applies the larger gradients at once, and accumulates the others for later steps.
    "zero_optimization.zenflow": "ZenFlow",
    # DeepSpeed 0.19 raises a plain Exception.
    "zero_optimization.legacy_stage1": "ZeRO-1 as it was before DeepSpeed 0.5.9",
    # Weights are then gathered where a large module is called; the loss uses the head's weight without calling the
    # head, and norms fail with a shape error.
    "zero_optimization.stage3_module_granularity_threshold": "gathering the weights of many modules at once",
    "zero_optimization.module_granularity_threshold": "gathering the weights of many modules at once",
}
"""Sections and keys -> the feature that they switch on. DeepSpeed has removed some, and refuses them even if off."""

REQUIRED: dict[str, tuple[Any, str]] = {
    "gradient_allreduce_op": ("mean", "the loss is divided for a mean over the devices"),
    "managed_gradient_accumulation": (True, "the loop determines the last micro-batch"),
    "zero_optimization.compute_grad_norm": (True, "each step records the norm of its gradients"),
    "optimizer.params.adam_w_mode": (True, "weights decay as in AdamW"),
    "optimizer.params.bias_correction": (True, "AdamW corrects its means of the first steps"),
    "optimizer.params.amsgrad": (False, "AMSGrad is not supported"),
    "optimizer.params.momentum": (0, "sgd has no momentum"),
    "optimizer.params.dampening": (0, "sgd has no momentum"),
    "optimizer.params.nesterov": (False, "sgd has no momentum"),
}
"""Key -> the only value that trains as the recipe says, and the reason. Others would change the result silently."""

PASSED_ON = frozenset((
    "activation_checkpointing", "aio", "bf16", "checkpoint", "comet", "comms_logger", "communication_data_type",
    "compile", "csv_monitor", "data_types", "dataloader_drop_last", "disable_allgather",
    "disable_python_gc", "dump_state", "flops_profiler", "fp16", "gradient_predivide_factor", "log_level",
    "memory_breakdown", "pipeline", "prescale_gradients", "seq_parallel_communication_data_type", "tensorboard",
    "timers", "use_data_before_expert_parallelism", "vocabulary_size", "wall_clock_breakdown", "wandb",
    "weight_quantization", "zero_optimization",
))  # fmt: skip
"""Top-level keys that DeepSpeed reads and that contradict nothing in the recipe."""

_OWN = frozenset((
    "bfloat16", "gradient_accumulation_steps", "gradient_allreduce_op", "gradient_clipping",
    "managed_gradient_accumulation", "optimizer", "steps_per_print", "train_batch_size",
    "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
))  # fmt: skip
# Not DeepSpeed's, but keys in files that come with LLaMA-Factory, accelerate and Ray.
_HARMLESS = frozenset(("comms_config", "monitor_config", "zero3_init_flag", "local_rank"))
# They change how an optimizer computes, not its result.
_WAYS = frozenset(("torch_adam", "fused", "foreach", "fp32_optimizer_states"))

KNOWN = {
    "": frozenset((*REPLACED, *UNSUPPORTED, *PASSED_ON, *_OWN, *_HARMLESS)),
    "optimizer": frozenset(("type", "params", "legacy_fusion")),
    "optimizer.params": frozenset((
        "lr", "betas", "eps", "weight_decay", "max_grad_norm", *_WAYS,
        *(key.rpartition(".")[2] for key in REQUIRED if key.startswith("optimizer.params.")),
    )),
}  # fmt: skip
"""Section -> its keys, for sections whose unknown keys DeepSpeed ignores, or that it never sees ("optimizer")."""


def is_comment(key: str) -> bool:
    """Whether a key only contains a remark: JSON has no comments."""
    return key.startswith(("_", "/", "#")) or key.lower() in ("comment", "comments")
