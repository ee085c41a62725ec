"""Detects LLaMA-Factory recipes, and whether they train."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from typing import Any

from ascendtune.core.document import Document
from ascendtune.core.errors import RecipeError
from ascendtune.recipe.llamafactory.keys import TRANSLATED
from ascendtune.recipe.llamafactory.llamafactory_recipe import KEYS, names_of

_MARK = "model_name_or_path"
_SHARDING = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2"}
"""accelerate's numbers of FSDP's sharding strategies."""


def is_llamafactory_recipe(document: Document, native_keys: Collection[str]) -> bool:
    """Whether this is a LLaMA-Factory recipe.

    Args:
        native_keys: top-level keys of a native recipe.

    Raises:
        RecipeError: it mixes LLaMA-Factory's keys with native ones, or is another kind of LLaMA-Factory file.
    """
    keys = set(document.values)
    if _MARK in keys:
        if both := sorted(keys & set(native_keys) - set(KEYS)):
            raise RecipeError(
                f"'{_MARK}' makes this a LLaMA-Factory recipe, and '{both[0]}' is a native key",
                code="mixed-recipe-forms",
                remedy="write all of it in one form; `ascendtune recipe convert FILE` prints the native form",
                where=document.place((both[0],)),
            )
        return True
    if isinstance(document.values.get("model"), dict):
        return False
    if refusal := _other_llamafactory_file(document.values):
        what, remedy = refusal
        raise RecipeError(what, code="not-a-training-recipe", remedy=remedy, where=document.source)
    if len(keys & set(KEYS) - set(native_keys)) >= 3:
        raise RecipeError(
            f"this looks like a LLaMA-Factory recipe, without '{_MARK}'",
            code="llamafactory-mark-missing",
            remedy="add it",
            where=document.source,
        )
    return False


def _other_llamafactory_file(values: dict[str, Any]) -> tuple[str, str] | None:
    keys = set(values)
    if any(key.startswith("top.") for key in keys):
        return (
            "this is the state of a LLaMA Board page (llamaboard_config.yaml), not a recipe",
            "use training_args.yaml beside it, which is a recipe",
        )
    if "distributed_type" in keys:
        return (
            "this configures `accelerate launch`; it is not a recipe",
            f"train the recipe itself: {shlex.join(['ascendtune', 'train', 'RECIPE', *_of_accelerate(values)])}",
        )
    if keys and all(re.fullmatch(r"<.+>", key) and isinstance(value, str) for key, value in values.items()):
        return (
            "this is a list of new tokens with descriptions (new_special_tokens_config); it is not a recipe",
            f"name the tokens in one: add_special_tokens: {', '.join(values)}; their embeddings start at the mean",
        )
    if "zero_optimization" in keys:
        return (
            "this configures DeepSpeed; it is not a recipe",
            "name it in a recipe: parallel: {strategy: deepspeed, deepspeed: {config: FILE}}",
        )
    return None


def _of_accelerate(values: dict[str, Any]) -> list[str]:
    """Overrides for the same parallelism as a configuration of `accelerate launch`."""
    kind = str(values["distributed_type"]).upper()
    own = values.get(f"{kind.lower()}_config")
    options = {key.removeprefix("fsdp_"): value for key, value in own.items()} if isinstance(own, dict) else {}
    signs = []
    if kind == "DEEPSPEED":
        signs.append("parallel.strategy=deepspeed")
        if file := options.get("deepspeed_config_file"):
            return [*signs, f"parallel.deepspeed.config={file}"]
        stage = options.get("zero_stage", 2)
        signs.append(f"parallel.deepspeed.stage={stage}")
        # Below stage 3 DeepSpeed does not offload weights, even if the file requests it.
        for part in ("offload_optimizer", "offload_param")[: 2 if stage == 3 else 1]:
            if (device := options.get(f"{part}_device", "none")) != "none":
                signs.append(f"parallel.deepspeed.{part}={device}")
    elif kind == "FSDP":
        # Old configurations have numbers.
        sharding = str(options.get("sharding_strategy", options.get("reshard_after_forward"))).upper()
        sharding = _SHARDING.get(sharding, sharding)
        signs.append(f"parallel.strategy={'ddp' if sharding == 'NO_SHARD' else 'fsdp'}")
        if sharding in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "FALSE"):
            signs.append("parallel.fsdp.reshard=false")
        if sharding.startswith("HYBRID"):
            signs.append("parallel.fsdp.replicas=nodes")
        if options.get("offload_params") in (True, "true"):
            signs.append("parallel.fsdp.offload=true")
    elif kind.startswith("MULTI_"):
        signs.append("parallel.strategy=ddp")
    if (precision := values.get("mixed_precision")) in ("bf16", "fp16"):
        signs.append(f"precision={precision}")
    return signs


def is_llamafactory_key(key: str) -> bool:
    """Whether `key=value` on the command line refers to LLaMA-Factory's key if the recipe is LLaMA-Factory's."""
    parent, dot, _ = key.partition(".")
    return key in KEYS or bool(dot and parent in TRANSLATED and TRANSLATED[parent].kind == "text or mapping")


def require_training(document: Document) -> None:
    """Raises:
    RecipeError: the file is for merging, chat or prediction; the remedy names the command for it.
    """
    values = document.values
    if values.get("do_train") is True:
        return
    if values.get("export_dir") is not None:
        what, remedy = _merging(values)
        raise RecipeError(what, code="not-a-training-recipe", remedy=remedy, where=document.place(("export_dir",)))
    if values.get("do_predict"):
        model = values.get("adapter_name_or_path") or values[_MARK]
        raise RecipeError(
            "do_predict: this recipe generates answers; it does not train",
            code="not-a-training-recipe",
            remedy=f"ascendtune generate {shlex.quote(str(model))} --file QUESTIONS",
            where=document.place(("do_predict",)),
        )
    if "dataset" in values:
        raise RecipeError(
            "do_train is not true: LLaMA-Factory would not train with this either",
            code="not-a-training-recipe",
            remedy="add do_train: true",
            where=document.place(("do_train",)) if "do_train" in values else document.source,
        )
    model = values.get("adapter_name_or_path") or values[_MARK]
    raise RecipeError(
        "this recipe has no dataset: it is for chat, not for training",
        code="not-a-training-recipe",
        remedy=f"ascendtune chat {shlex.quote(str(model))}; or add dataset and do_train: true",
        where=document.source,
    )


def _merging(values: dict[str, Any]) -> tuple[str, str]:
    """The problem of a merging recipe, and the command that does the merge."""
    target, base = shlex.quote(str(values["export_dir"])), shlex.quote(str(values[_MARK]))
    if values.get("export_quantization_bit") is not None:
        return (
            "export_quantization_bit: quantised models are not supported in this version",
            f"export without it: ascendtune merge ADAPTER --onto {base} --to {target}",
        )
    adapters = names_of(values.get("adapter_name_or_path"))
    if not adapters:
        return (
            "export_dir: there is no adapter to merge, and full weights are saved in Hugging Face format in any case",
            f"copy them: the directory `model` of the run, or {base} itself, to {target}",
        )
    each = " --adapter ".join(map(shlex.quote, adapters))
    return (
        "export_dir: this recipe merges an adapter; it does not train",
        f"ascendtune merge {each} --onto {base} --to {target}",
    )
