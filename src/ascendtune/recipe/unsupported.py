"""Recipes that are refused: keys of unsupported features, and unsupported combinations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ascendtune.core.document import Path_
from ascendtune.recipe.method import ALL_EXPERTS
from ascendtune.recipe.parallel import STAGE_0_REMEDY, STAGE_0_ROUNDS
from ascendtune.recipe.sections import NEEDS_WHOLE_MATRICES


def _table() -> Iterator[tuple[str, str]]:
    for kind, stems in _PARALLELISM.items():
        for stem in stems:
            for end in ("", "_size", "_degree"):
                yield (
                    stem + end,
                    f"{kind} parallelism is not supported in this version; use parallel.strategy: fsdp or deepspeed",
                )
    for key in _QUANTISATION:
        yield key, "use model.quantization: nf4, which needs no quantisation library, with method.tuner: lora"
    for key in _MULTIMODAL:
        yield key, "images, video and sound are not supported in this version; train a text model on text"
    yield "max_prompt_length", "questions alone are not cut; data.max_length is for question and answer together"
    for key in ("ppo", "grpo", "rlhf", "rollout", "reward_model", "num_generations"):
        yield key, "PPO and GRPO are not supported in this version; method.stage: preference is the nearest"


_PARALLELISM = {
    "tensor": ("tensor", "tensor_parallel", "tensor_model_parallel", "tp"),
    "pipeline": ("pipeline", "pipeline_parallel", "pipeline_model_parallel", "pp"),
    "sequence": ("sequence", "sequence_parallel", "sp", "ulysses", "context_parallel", "cp"),
    "expert": ("expert_parallel", "expert_model_parallel", "ep"),
}
_QUANTISATION = (
    *("load_in_4bit", "load_in_8bit", "quantisation", "quantization_bit", "quantization_config"),
    *("quantize", "quantized", "bits", "qlora", "gptq", "awq", "bitsandbytes", "bnb"),
)
_MULTIMODAL = ("images", "videos", "audios", "media_dir", "image_folder", "freeze_vision_tower", "vision")

UNSUPPORTED_KEYS: dict[str, str] = dict(_table())
"""Remedy by the key's own name, at any level of the recipe."""


if TYPE_CHECKING:
    from ascendtune.recipe.recipe import Recipe


@dataclass(frozen=True)
class Refusal:
    """A refused combination: the reason, and the remedy."""

    applies: Callable[[Recipe], bool]
    what: str
    remedy: str
    path: Path_
    """The key for the error message."""


def _adapts_experts(recipe: Recipe) -> bool:
    lora = recipe.method.lora
    # With start_from the adapter's files decide the target.
    return recipe.method.tuner == "lora" and ALL_EXPERTS in lora.target and not lora.start_from


def _is_sharded(recipe: Recipe) -> bool:
    return recipe.parallel.strategy in ("fsdp", "deepspeed")


def _starts_as_pissa(recipe: Recipe) -> bool:
    return recipe.method.tuner == "lora" and recipe.method.lora.init == "pissa"


REFUSALS = (
    Refusal(
        lambda recipe: recipe.model.quantization is not None and recipe.method.adapter is None,
        "model.quantization stores weights in four bits, which cannot be trained: training moves them by less than the "
        "distance between two levels",
        "use method.tuner: lora or oft, or remove model.quantization",
        ("model", "quantization"),
    ),
    Refusal(
        lambda recipe: recipe.model.double_quantization and recipe.model.quantization is None,
        "model.double_quantization is about the scales of model.quantization, which is not set",
        "set model.quantization: nf4, or remove it",
        ("model", "double_quantization"),
    ),
    Refusal(
        lambda recipe: (
            recipe.model.quantization is not None and recipe.method.tuner == "lora" and recipe.method.lora.dora
        ),
        "method.lora.dora with model.quantization: DoRA starts from the norms of the weights as they are in the files, "
        "and quantised ones have others",
        "remove one of them",
        ("method", "lora", "dora"),
    ),
    Refusal(
        lambda recipe: recipe.model.quantization is not None and recipe.parallel.strategy == "deepspeed",
        "model.quantization with parallel.strategy: deepspeed is not supported in this version",
        "use parallel.strategy: auto, ddp or fsdp",
        ("model", "quantization"),
    ),
    Refusal(
        lambda recipe: recipe.method.adapter is not None and recipe.model.init == "random",
        "an adapter (method.tuner: lora or oft) with model.init: random would have no base model on disk",
        "use method.tuner: full, or save the random model first and give its path",
        ("model", "init"),
    ),
    Refusal(
        lambda recipe: recipe.method.adapter is not None and recipe.model.new_layers > 0,
        "an adapter (method.tuner: lora or oft) with model.new_layers would have no base model on disk",
        "use method.tuner: freeze with method.freeze.spread_layers",
        ("model", "new_layers"),
    ),
    Refusal(
        lambda recipe: recipe.model.init == "random" and recipe.model.new_layers > 0,
        "model.new_layers copies layers, and with model.init: random there are none to copy",
        "set num_hidden_layers in config.json, and remove model.new_layers",
        ("model", "new_layers"),
    ),
    Refusal(
        lambda recipe: _starts_as_pissa(recipe) and recipe.method.lora.dora,
        "method.lora.init: pissa with dora: DoRA scales the sum of the base and one adapter, PiSSA starts as two",
        "keep one of them",
        ("method", "lora", "dora"),
    ),
    Refusal(
        lambda recipe: _adapts_experts(recipe) and recipe.method.lora.dropout > 0,
        "method.lora.dropout with all-experts: PEFT adds the adapters of experts to their weights, where no input "
        "can be dropped",
        "set method.lora.dropout: 0, or leave all-experts out of method.lora.target",
        ("method", "lora", "dropout"),
    ),
    Refusal(
        lambda recipe: _adapts_experts(recipe) and recipe.method.lora.dora,
        "method.lora.dora with all-experts: PEFT has DoRA for modules only, and experts are parameters",
        "leave out method.lora.dora, or all-experts in method.lora.target",
        ("method", "lora", "dora"),
    ),
    Refusal(
        lambda recipe: _adapts_experts(recipe) and recipe.method.lora.init == "pissa",
        "method.lora.init: pissa with all-experts: PiSSA is for linear modules, and experts are parameters",
        "use init: zero, or leave all-experts out of method.lora.target",
        ("method", "lora", "init"),
    ),
    Refusal(
        lambda recipe: _starts_as_pissa(recipe) and bool(recipe.method.lora.start_from),
        "method.lora.init: pissa with start_from: a resumed adapter is already initialised",
        "keep one of them",
        ("method", "lora", "init"),
    ),
    Refusal(
        lambda recipe: recipe.method.tuner == "oft" and ALL_EXPERTS in recipe.method.oft.target,
        "method.oft.target: all-experts: PEFT has OFT for modules only, and experts are parameters",
        "use method.tuner: lora, or leave out all-experts",
        ("method", "oft", "target"),
    ),
    Refusal(
        lambda recipe: _is_sharded(recipe) and recipe.method.tuner == "oft" and recipe.method.oft.coft,
        "method.oft.coft changes weights in the forward pass, and a rank with a shard or a copy of them cannot",
        "set method.oft.coft: false, or parallel.strategy: ddp",
        ("method", "oft", "coft"),
    ),
    *(
        Refusal(
            # The default argument binds the name of this iteration.
            lambda recipe, name=name: _is_sharded(recipe) and recipe.optim.optimizer == name,  # type: ignore[misc]
            f"{reason}, and a rank with a shard of it cannot",
            "use optim.optimizer: adamw, or parallel.strategy: ddp",
            ("optim", "optimizer"),
        )
        for name, reason in NEEDS_WHOLE_MATRICES.items()
    ),
    Refusal(
        lambda recipe: _is_sharded(recipe) and recipe.method.stage == "sft" and recipe.method.sft.loss == "asft",
        "method.sft.loss: asft restores the weights from before training for a forward pass, and a rank that holds "
        "shards of them cannot",
        "use method.sft.loss: dft, or parallel.strategy: ddp",
        ("method", "sft", "loss"),
    ),
    Refusal(
        lambda recipe: recipe.method.adapter is not None and recipe.optim.optimizer == "muon",
        "optim.optimizer: muon is for the matrices of a model; every adapter would use AdamW",
        "use optim.optimizer: adamw, or method.tuner: full or freeze",
        ("optim", "optimizer"),
    ),
    Refusal(
        # `precision: auto` is resolved on the device, and a DeepSpeed JSON when it is read.
        lambda recipe: (
            recipe.parallel.strategy == "deepspeed"
            and recipe.parallel.deepspeed.config is None
            and recipe.parallel.deepspeed.stage == 0
            and recipe.precision in ("bf16", "fp16")
        ),
        STAGE_0_ROUNDS,
        STAGE_0_REMEDY,
        ("parallel", "deepspeed", "stage"),
    ),
    Refusal(
        lambda recipe: recipe.parallel.strategy == "deepspeed" and recipe.parallel.reduce_dtype != "fp32",
        "parallel.reduce_dtype is for ddp and fsdp: DeepSpeed sums gradients in the type that it computes in",
        "remove it, or use parallel.strategy: fsdp",
        ("parallel", "reduce_dtype"),
    ),
    Refusal(
        lambda recipe: recipe.parallel.reduce_dtype == "bf16" and recipe.parallel.fsdp.sync_each_batch is False,
        "with parallel.reduce_dtype: bf16, parallel.fsdp.sync_each_batch: false would add micro-batches in bf16, too",
        "keep one of them",
        ("parallel", "fsdp", "sync_each_batch"),
    ),
)

NOT_SUMMABLE = {
    "use_dora": "DoRA scales the sum of the base and its own matrices",
    "lora_bias": "its matrices have biases",
    "trainable_token_indices": "it replaces rows of the embeddings",
}
"""Keys of an adapter's config that make it more than one term of a sum; several adapters are exported as their sum."""


def refusals(recipe: Recipe) -> Iterable[Refusal]:
    """The entries of the table that apply to `recipe`; of several for one key the first."""
    applying = [each for each in REFUSALS if each.applies(recipe)]
    return {each.path: each for each in reversed(applying)}.values()
