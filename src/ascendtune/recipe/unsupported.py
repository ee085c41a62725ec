"""Keys that people look for and that name something not in this version: what to do instead."""

from __future__ import annotations

from collections.abc import Iterator


def _table() -> Iterator[tuple[str, str]]:
    for kind, stems in _PARALLELISM.items():
        for stem in stems:
            for end in ("", "_size", "_degree"):
                yield stem + end, f"{kind} parallelism is not in this version; use parallel.strategy: fsdp or deepspeed"
    for key in _QUANTISATION:
        yield key, "quantised training is not in this version; use method.tuner: lora with model.dtype: bf16"
    for key in _MULTIMODAL:
        yield key, "images, video and sound are not in this version; train a text model on text"
    for key in ("ppo", "grpo", "rlhf", "rollout", "reward_model", "num_generations"):
        yield key, "PPO and GRPO are not in this version; method.stage: preference is the nearest"


_PARALLELISM = {
    "tensor": ("tensor", "tensor_parallel", "tensor_model_parallel", "tp"),
    "pipeline": ("pipeline", "pipeline_parallel", "pipeline_model_parallel", "pp"),
    "sequence": ("sequence", "sequence_parallel", "sp", "ulysses", "context_parallel", "cp"),
    "expert": ("expert_parallel", "expert_model_parallel", "ep"),
}
_QUANTISATION = (
    *("load_in_4bit", "load_in_8bit", "quantization", "quantisation", "quantization_bit", "quantization_config"),
    *("quantize", "quantized", "bits", "qlora", "gptq", "awq", "bitsandbytes", "bnb"),
)
_MULTIMODAL = ("images", "videos", "audios", "media_dir", "image_folder", "freeze_vision_tower", "vision")

NOT_HERE: dict[str, str] = dict(_table())
"""By the key's own name, wherever in the recipe it stands."""
