"""LLaMA-Factory's keys for unsupported features: each is an error that names an alternative."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class UnsupportedKey(NamedTuple):
    """An unsupported key of LLaMA-Factory's. Its default, null and false are accepted."""

    default: Any
    what: str
    remedy: str


def _refused() -> Iterator[tuple[str, UnsupportedKey]]:
    for what, remedy, keys in _GROUPS:
        for key, default in keys.items():
            yield key, UnsupportedKey(default, what, remedy)


_LESS_MEMORY = "remove it: AdamW is used; lora, or deepspeed with offloading, needs less memory too"

_GROUPS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "it is not supported in this version: only the base below an adapter is quantised (quantization_bit: 4)",
        "remove it",
        {"ref_model_quantization_bit": None, "export_quantization_bit": None},
    ),
    (
        "GaLore is not supported in this version: galore-torch (last released in 2024) does not import without "
        "bitsandbytes",
        _LESS_MEMORY,
        {"use_galore": False},
    ),
    (
        "APOLLO is not supported in this version: apollo-torch may not be used commercially (CC-BY-NC)",
        _LESS_MEMORY,
        {"use_apollo": False},
    ),
    (
        "BAdam is not supported in this version: a run with badam cannot resume, because its state has no current "
        "block",
        _LESS_MEMORY,
        {"use_badam": False},
    ),
    (
        "Adam-mini is not supported in this version: adam-mini supports only CUDA and the CPU, and counts ranks by "
        "CUDA devices",
        _LESS_MEMORY,
        {"use_adam_mini": False},
    ),
    (
        "options of transformers' optimizers are not supported in this version",
        "remove it; optim.beta1, optim.beta2, optim.epsilon and optim.weight_decay are the options here",
        {"optim_args": None, "optim_target_modules": None},
    ),
    (
        "this loss is not supported in this version",
        "remove it: the loss is cross-entropy",
        {
            "label_smoothing_factor": 0.0, "moe_aux_loss_coef": None,
        },
    ),
    (
        "this term of a preference loss is not supported in this version",
        "remove it",
        {"pref_bco_weight": 0.0, "ld_alpha": None},
    ),
    (
        "FP8 training is not supported in this version",
        "remove it and keep bf16: true",
        {"fp8": False, "fp8_enable_fsdp_float8_all_gather": False},
    ),
    (
        "KTransformers is not supported in this version",
        "remove it: parallel.strategy fsdp or deepspeed divides a model that is too large for one device",
        {"use_kt": False},
    ),
    (
        "tensor, pipeline, context and expert parallelism (Megatron) are not supported in this version",
        "remove it: deepspeed: ZERO3.json or fsdp: full_shard divides the weights",
        {
            "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1,
            "context_parallel_size": 1, "sequence_parallel": False, "use_mca": False, "use_hyper_parallel": False,
            "use_megatron_bridge": False, "hyper_parallel_cp_size": 1,
            "parallelism_config": None,
        },
    ),
    (
        "images, video and sound are not supported in this version",
        "remove it and train a text model on text",
        {
            "image_max_pixels": 589_824, "image_min_pixels": 1024, "image_do_pan_and_scan": False,
            "crop_to_patches": False, "video_max_pixels": 65_536, "video_min_pixels": 256, "video_fps": 2.0,
            "video_maxlen": 128, "use_audio_in_video": False, "audio_sampling_rate": 16_000, "media_dir": None,
            "freeze_language_model": False, "visual_inputs": False, "image_resolution": 512, "video_resolution": 128,
            "train_mm_proj_only": False,
        },
    ),
    (
        "this form of fine-tuning is not supported in this version",
        "remove it: finetuning_type lora, freeze or full",
        {"mixture_of_depths": None, "shift_attn": False, "create_new_adapter": False},
    ),
    (
        "this way of changing a model at load is not supported in this version",
        "save the changed model once and give its directory as model_name_or_path",
        {
            "rope_scaling": None, "new_special_tokens_config": None, "init_special_tokens": "noise_init",
            "split_special_tokens": False, "use_fast_tokenizer": True, "adapter_folder": None,
            "upcast_layernorm": False,
        },
    ),
    (
        "this way of reading data is not supported in this version",
        "remove it: all data sets are read whole, shuffled together, and tokenised once into a cache on disk",
        {
            "streaming": False, "disable_shuffling": False,
            "train_sampling_strategy": "random", "group_by_length": False, "sortish_sampler": False,
            "dataloader_drop_last": False,
        },
    ),
    (
        "mixing data sets by drawing from them is not supported in this version",
        "remove it, convert the recipe (`ascendtune recipe convert`), and give each data set a weight: for a share p "
        "of N rows from n rows p × N / n",
        {"mix_strategy": "concat", "interleave_probs": None},
    ),
    (
        "one split for all data sets is not supported in this version",
        "write `split` into the data set's entry of dataset_info.json",
        {"split": "train"},
    ),
    (
        "training only on the last answer is not supported in this version",
        "mark earlier turns in the data instead: messages with \"loss_weight\": 0",
        {"mask_history": False},
    ),
    (
        "another way of writing tools is not supported in this version",
        "remove it: tools are written as the template writes them",
        {"tool_format": None},
    ),
    (
        "this adapter of a second model is not supported in this version",
        "merge it once with `ascendtune merge` and give the result as ref_model",
        {"ref_model_adapters": None},
    ),
    (
        "PPO is not supported in this version",
        "use stage: dpo, the nearest",
        {"reward_model": None, "reward_model_adapters": None, "reward_model_quantization_bit": None},
    ),
    (
        "this learning rate is not supported in this version",
        "remove it",
        {"loraplus_lr_embedding": 1e-6},
    ),
    (
        "searching for a batch size is not supported in this version",
        "set per_device_train_batch_size",
        {"auto_find_batch_size": False},
    ),
    (
        "the loss is always divided by the labelled tokens of all devices",
        "remove it",
        {"average_tokens_across_devices": True},
    ),
    (
        "generating answers is not a part of training here",
        "remove it, train, then: ascendtune generate RUN --file QUESTIONS",
        {"do_predict": False, "predict_with_generate": False},
    ),
    (
        "only the evaluation loss is compared",
        "remove it, or write eval_loss",
        {"metric_for_best_model": None, "greater_is_better": None},
    ),
    (
        "a token does not belong in a recipe, which is copied into the run directory",
        "remove it and set the environment variable HF_TOKEN",
        {"hf_hub_token": None, "ms_hub_token": None, "om_hub_token": None, "hub_token": None, "swanlab_api_key": None,
         "push_to_hub_token": None},
    ),
    (
        "the cache of downloads is chosen by the environment",
        "remove it and set HF_HOME",
        {"cache_dir": None},
    ),
    (
        "uploading is not a part of training here",
        "remove it; `ascendtune push RUN OWNER/NAME` does it afterwards",
        {"push_to_hub": False, "export_hub_model_id": None},
    ),
    (
        "the rendezvous of nodes is set by the command line",
        "remove it; start with --nodes HOSTS, or set NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT on each node",
        {"master_addr": None, "master_port": None},
    ),
    (
        "devices are chosen on the command line",
        "remove it; --devices and --device-ids choose, ASCEND_RT_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES hide devices",
        {"use_cpu": False, "no_cuda": False, "use_mps_device": False},
    ),
    (
        "the profiled steps are chosen in another way here",
        "remove it; `ascendtune profile` profiles the steps that --steps names, and so does profile.steps, such as 5-8",
        {"enable_torch_profiler": False, "profile_modules": None},
    ),
)  # fmt: skip

UNSUPPORTED_KEYS: dict[str, UnsupportedKey] = dict(_refused())
