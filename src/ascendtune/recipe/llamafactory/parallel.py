"""The `parallel` section of a LLaMA-Factory recipe."""

from __future__ import annotations

from typing import Any

from ascendtune.recipe.llamafactory.llamafactory_recipe import LlamaFactoryRecipe, NativeRecipe

# Options of FSDP1 and accelerate that are determined automatically here.
_FOUND_HERE = {
    "version", "fsdp_version", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "backward_prefetch",
    "forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading",
    "activation_checkpointing", "state_dict_type", "min_num_params",
}  # fmt: skip
_FSDP_OPTIONS = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "auto_wrap", "offload")
_CHOSEN_HERE = {"reshard_after_forward": "parallel.fsdp.reshard", "offload_params": "parallel.fsdp.offload"}


def translate_parallel(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    """The `parallel` section; without deepspeed and fsdp the strategy is chosen by size, and run.json records why."""
    if recipe["deepspeed"] is not None and (recipe["fsdp"] or recipe["fsdp_config"]):
        recipe.add_error(
            "fsdp", "deepspeed and fsdp contradict each other", "keep one of them", code="conflicting-keys"
        )
    elif recipe["deepspeed"] is not None:
        _put_deepspeed(recipe, native)
    elif recipe["fsdp"] is not None:
        _put_fsdp(recipe, native)
    elif recipe["fsdp_config"] is not None:
        native.note_ignored("fsdp_config", "fsdp is not set")


def _put_deepspeed(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    config, place = recipe["deepspeed"], recipe.place("deepspeed")
    native.put("parallel.strategy", "deepspeed", place)
    if isinstance(config, str):
        native.put("parallel.deepspeed.config", config, place)
        return
    zero = config.get("zero_optimization")
    known = {"stage", "offload_optimizer", "offload_param"}
    if not isinstance(zero, dict) or set(config) - {"zero_optimization"} or set(zero) - known:
        recipe.add_error(
            "deepspeed", "deepspeed: of a configuration inside the recipe only zero_optimization with stage, "
            "offload_optimizer and offload_param is supported", "write it into a JSON file and give its path",
            code="not-in-this-version",
        )  # fmt: skip
        return
    native.put("parallel.deepspeed.stage", zero.get("stage", 0), place)
    for part in ("offload_optimizer", "offload_param"):
        where = zero.get(part) or {}
        if device := where.get("device") if isinstance(where, dict) else where:
            native.put(f"parallel.deepspeed.{part}", device, place)
        if isinstance(where, dict) and where.get("nvme_path"):
            native.put("parallel.deepspeed.nvme_path", where["nvme_path"], place)


def _put_fsdp(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    place = recipe.place("fsdp")
    options = [word for text in recipe["fsdp"] for word in text.split()]
    if "no_shard" in options:
        native.put("parallel.strategy", "ddp", place)
        return
    if unknown := [word for word in options if word not in _FSDP_OPTIONS]:
        recipe.refuse("fsdp", f"fsdp: {unknown[0]}", "use full_shard, shard_grad_op, hybrid_shard, offload or no_shard")
        return
    native.put("parallel.strategy", "fsdp", place)
    if "shard_grad_op" in options or "hybrid_shard_zero2" in options:
        native.put("parallel.fsdp.reshard", False, place)
    if "hybrid_shard" in options or "hybrid_shard_zero2" in options:
        native.put("parallel.fsdp.replicas", "nodes", place)
    if "offload" in options:
        native.put("parallel.fsdp.offload", True, place)
    _put_fsdp_config(recipe, native)


def _put_fsdp_config(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    config: Any = recipe["fsdp_config"]
    if config is None:
        return
    place = recipe.place("fsdp_config")
    if isinstance(config, str):
        recipe.add_error(
            "fsdp_config",
            "fsdp_config: the path of a file is not supported",
            "copy the keys of the file below fsdp_config",
            code="not-in-this-version",
        )
        return
    for written, value in config.items():
        key = written.removeprefix("fsdp_")
        if key in _CHOSEN_HERE and isinstance(value, bool):
            native.put(_CHOSEN_HERE[key], value, place)
        elif written not in _FOUND_HERE and key not in _FOUND_HERE:
            recipe.add_error(
                "fsdp_config",
                f"fsdp_config.{written}: {value} is not supported",
                "remove it",
                code="not-in-this-version",
            )
