"""LLaMA-Factory's keys that do not change the result here: they are accepted, with a note on the reason."""

from __future__ import annotations

from typing import Any

WHY_NO_TRACKER = "runs are sent to wandb, swanlab, mlflow and trackio; every number is in metrics.jsonl too"

_GROUPS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "an unfinished run of this name is resumed, a finished one is kept and the new one gets a number; "
        "checkpoint.resume=never starts a new one",
        {"overwrite_output_dir": False},
    ),
    ("a picture of loss and learning rate is drawn in every run", {"plot_loss": False}),
    (
        "tokens are cached by a hash of their inputs",
        {
            "overwrite_cache": False, "tokenized_path": None, "data_shared_file_system": False,
            "preprocessing_batch_size": 1000, "buffer_size": 16384, "cache_path": None,
        },
    ),
    (
        "tokens come from a memory-mapped file: no worker has to prepare batches",
        {
            "dataloader_num_workers": 0, "dataloader_pin_memory": True, "dataloader_persistent_workers": False,
            "dataloader_prefetch_factor": None, "dataloader_multiprocessing_context": None,
            "dataloader_in_order": True, "remove_unused_columns": True, "label_names": None,
            "length_column_name": "length", "ignore_pad_token_for_loss": True, "dispatch_batches": None,
            "split_batches": None,
        },
    ),
    ("data is prepared before the processes join, so the usual time-out is enough", {"ddp_timeout": 1800}),
    (
        "how gradients travel between devices is chosen here",
        {
            "ddp_find_unused_parameters": None, "ddp_bucket_cap_mb": None, "ddp_broadcast_buffers": None,
            "ddp_static_graph": None, "ddp_backend": None, "local_rank": -1, "accelerator_config": None,
            "fsdp_transformer_layer_cls_to_wrap": "", "fsdp_min_num_params": 0, "ray_scope": "last",
            "mp_parameters": "",
        },
    ),
    ("a checkpoint always contains everything that a resume needs", {"save_only_model": False}),
    ("weights are always saved as safetensors", {"save_safetensors": True}),
    ("a longer row is cut at its end", {"reserved_label_len": 1}),
    (
        "checkpoints are written on one node, at the steps of save_steps",
        {
            "save_on_each_node": False, "enable_jit_checkpoint": False,
            "restore_callback_states_from_checkpoint": False, "ignore_data_skip": False,
        },
    ),
    (
        "fused operators are chosen by `kernel`, and tested before they are used",
        {
            "use_v1_kernels": False, "enable_liger_kernel": False, "use_liger_kernel": False,
            "liger_kernel_config": None, "use_unsloth": False, "use_unsloth_gc": False, "torch_compile": False,
            "torch_compile_backend": None, "torch_compile_mode": None, "tf32": None, "torchdynamo": None,
            "use_ipex": False, "jit_mode_eval": False,
        },
    ),
    (
        "recomputing is on unless disable_gradient_checkpointing is set, and never re-entrant",
        {
            "gradient_checkpointing": None, "gradient_checkpointing_kwargs": None, "use_reentrant_gc": True,
            "activation_checkpointing": None, "activation_checkpointing_kwargs": None,
        },
    ),
    ("an evaluation records the loss of each of its data sets in any case", {"eval_on_each_dataset": False}),
    ("the loss is computed in fp32 in any case", {"upcast_lmhead_output": False}),
    (
        "bf16 and fp16 decide the precision",
        {"half_precision_backend": "auto", "fp16_backend": "auto", "fp16_opt_level": "O1", "lora_bf16_mode": False},
    ),
    ("weights are loaded without a second copy", {"low_cpu_mem_usage": True, "offload_folder": "offload"}),
    ("evaluation uses the same number of sequences at a time as training", {"per_device_eval_batch_size": 8}),
    (
        "only the evaluation loss is computed, at the steps of eval_steps",
        {
            "do_eval": False, "eval_delay": 0, "eval_on_start": False, "eval_accumulation_steps": None,
            "eval_do_concat_batches": True, "eval_use_gather_object": False, "prediction_loss_only": False,
            "include_for_metrics": None, "batch_eval_metrics": False, "compute_accuracy": False,
            "bf16_full_eval": False, "fp16_full_eval": False, "eval_num_beams": None,
            "include_inputs_for_metrics": False, "use_legacy_prediction_loop": False, "past_index": -1,
        },
    ),
    (
        "the records are the same in every run: metrics.jsonl has a line every logging_steps",
        {
            "logging_strategy": "steps", "logging_first_step": False, "logging_nan_inf_filter": True,
            "log_on_each_node": True, "log_level": "passive", "log_level_replica": "warning", "disable_tqdm": None,
            "include_num_input_tokens_seen": None, "include_effective_tokens_per_second": False,
            "include_tokens_per_second": False, "ppo_logger": None,
            "print_param_status": False, "skip_memory_metrics": True, "debug": None, "torch_empty_cache_steps": None,
            "logging_dir": None, "run_name": None, "trackio_space_id": None, "trackio_bucket_id": None,
            "trackio_static_space_id": None,
        },
    ),
    ("`seed` decides the order of rows too", {"data_seed": None}),
    ("principal parts are found in 16 iterations, in small weights exactly", {"pissa_iter": 16}),
    ("the saved adapter is an ordinary one for the base as it is on disk", {"pissa_convert": False}),
    ("a text model has no vision tower", {"freeze_vision_tower": True, "freeze_multi_modal_projector": True}),
    (
        "the number of devices is set at the start: --devices N",
        {"ray_num_workers": 1, "ray_init_kwargs": None, "ray_run_name": None, "ray_storage_path": None,
         "ray_storage_filesystem": None, "resources_per_worker": None, "placement_strategy": None},
    ),
    (
        "it is for inference",
        {
            "infer_backend": "huggingface", "infer_dtype": "auto", "use_kv_cache": True, "use_cache": False,
            "do_sample": True, "temperature": 0.95, "top_p": 0.7, "top_k": 50, "num_beams": 1, "max_length": 1024,
            "max_new_tokens": 1024, "repetition_penalty": 1.0, "length_penalty": 1.0, "skip_special_tokens": True,
            "generation_max_length": None, "generation_num_beams": None, "generation_config": None,
            "vllm_maxlen": 4096, "vllm_gpu_util": 0.7, "vllm_enforce_eager": False, "vllm_max_lora_rank": 32,
            "vllm_config": None, "vllm_dtype": "auto",
            "sglang_maxlen": 4096, "sglang_mem_fraction": 0.7, "sglang_tp_size": -1, "sglang_config": None,
            "sglang_lora_backend": "triton",
        },
    ),
    (
        "it is for exporting, which `ascendtune merge` does",
        {
            "export_dir": None, "export_size": 5, "export_device": "cpu", "export_legacy_format": False,
            "export_quantization_dataset": None, "export_quantization_nsamples": 128,
            "export_quantization_maxlen": 1024, "export_hf_on_finish": False,
        },
    ),
    (
        "each process puts its model on its own device",
        {"quantization_device_map": None},
    ),
    (
        "it belongs to use_galore, which is not set",
        {"galore_target": "all", "galore_rank": 16, "galore_update_interval": 200, "galore_scale": 2.0,
         "galore_proj_type": "std", "galore_layerwise": False},
    ),
    (
        "it belongs to use_apollo, which is not set",
        {"apollo_target": "all", "apollo_rank": 16, "apollo_update_interval": 200, "apollo_scale": 32.0,
         "apollo_proj": "random", "apollo_proj_type": "std", "apollo_scale_type": "channel",
         "apollo_layerwise": False, "apollo_scale_front": False},
    ),
    (
        "it belongs to use_badam, which is not set",
        {"badam_mode": "layer", "badam_start_block": None, "badam_switch_mode": "ascending",
         "badam_switch_block_every": 50,
         "badam_switch_interval": 50, "badam_update_ratio": 0.05, "badam_mask_mode": "adjacent", "badam_verbose": 0},
    ),
    ("it belongs to fp8, which is not set", {"fp8_backend": "auto"}),
    (
        "it belongs to stage ppo",
        {"ppo_buffer_size": 1, "ppo_epochs": 4, "ppo_score_norm": False, "ppo_target": 6.0,
         "ppo_whiten_rewards": False, "reward_model_type": "lora"},
    ),
    (
        "a run has the name of its directory in swanlab, and the workspace of the log-in; nothing is sent to Lark",
        {"swanlab_workspace": None, "swanlab_run_name": None, "swanlab_logdir": None, "swanlab_lark_webhook_url": None,
         "swanlab_lark_secret": None},
    ),
    (
        "it belongs to push_to_hub, which is not set",
        {"hub_model_id": None, "hub_strategy": "every_save", "hub_private_repo": None, "hub_always_push": False,
         "hub_revision": None, "push_to_hub_model_id": None, "push_to_hub_organization": None},
    ),
    (
        "it belongs to enable_torch_profiler, which is not set",
        {"profiler_output_dir": None, "profiler_wait_steps": 1, "profiler_warmup_steps": 1,
         "profiler_active_steps": 1, "profiler_repeat": 1, "profiler_record_shapes": True,
         "profiler_profile_memory": True, "profiler_with_stack": True},
    ),
    (
        "it belongs to use_kt, which is not set",
        {"kt_config": None, "kt_cpu_activation": None, "kt_weight_path": None, "kt_non_expert_weight_path": None,
         "kt_expert_checkpoint_path": None, "kt_use_lora_experts": None, "kt_lora_expert_num": None,
         "kt_lora_expert_intermediate_size": None},
    ),
    (
        "it belongs to Megatron training",
        {"use_distributed_optimizer": True, "bias_activation_fusion": None, "apply_rope_fusion": None,
         "overlap_grad_reduce": True, "overlap_param_gather": True, "mixed_precision": "bf16_mixed",
         "moe_grouped_gemm": None, "moe_token_dispatcher_type": None, "recompute_granularity": None,
         "use_packed_sequences": False, "hyper_parallel_args": None},
    ),
)  # fmt: skip

IGNORED_KEYS: dict[str, tuple[Any, str]] = {
    key: (default, why) for why, keys in _GROUPS for key, default in keys.items()
}
"""Key -> (LLaMA-Factory's default, which needs no note; why the key has no effect)."""
