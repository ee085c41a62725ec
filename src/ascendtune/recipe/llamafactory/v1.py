"""Recipes of LLaMA-Factory's v1 (USE_V1=1), whose keys are others: translated into a native document."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ascendtune.core.document import Document, read_document
from ascendtune.core.errors import RecipeError
from ascendtune.recipe.llamafactory.data import template_of
from ascendtune.recipe.llamafactory.keys import Key
from ascendtune.recipe.llamafactory.llamafactory_recipe import Dialect, LlamaFactoryRecipe, NativeRecipe, names_of
from ascendtune.recipe.llamafactory.unsupported import Refused

PLUGINS = ("init_config", "peft_config", "kernel_config", "quant_config", "dist_config", "optim_config",
           "lr_scheduler_config")  # fmt: skip
"""Keys whose value is a mapping with a `name`; here their inner keys are written `peft_config.r`."""
_MARKS = {
    "model_class", "train_dataset", "micro_batch_size", "sample_backend", "batching_strategy", *PLUGINS,
}  # fmt: skip

_ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flash_attention_2": "auto"}

TRANSLATED: dict[str, Key] = {
    "model": Key("text", "Qwen/Qwen3-4B-Instruct-2507", "model.path", copied=True, filled=True),
    "trust_remote_code": Key("truth", False, "model.trust_remote_code", copied=True),
    "flash_attn": Key(tuple(_ATTENTION), "sdpa", "model.attention"),
    "template": Key("text", None, "data.template"),
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
    "save_ckpt_as_hf": (False, "a checkpoint always holds all that a resume needs"),
    "peft_config.cast_trainable_params_to_fp32": (True, "trained weights are kept in fp32"),
    "peft_config.export_size": (5, _MERGING),
    "peft_config.infer_dtype": ("auto", _MERGING),
    "peft_config.export_legacy_format": (False, _MERGING),
    "peft_config.export_hub_model_id": (None, _MERGING),
}  # fmt: skip

_REMOVE = "remove it"
REFUSED: dict[str, Refused] = {
    "model_class": Refused("llm", "models that classify are not in this version", "use model_class: llm"),
    "custom_chat_template": Refused(
        None, "a chat template inside a recipe is not in this version",
        "write it into a file and give it at the start: data.template=FILE.jinja",
    ),
    "quant_config.name": Refused(
        None, "quantised training is not in this version",
        "remove quant_config: lora beside a frozen bf16 base needs no quantisation library",
    ),
    "quant_config.quantization_bit": Refused(None, "quantised training is not in this version", "remove quant_config"),
    "cp_size": Refused(
        1, "context parallelism is not in this version", "remove it; data.max_length and fsdp bound the memory"
    ),
    "dist_config.cp_size": Refused(1, "context parallelism is not in this version", _REMOVE),
    "mp_replicate_size": Refused(
        1, "shards that are replicated are not in this version", "remove it: fsdp divides by all devices"
    ),
    "dist_config.ep_size": Refused(None, "expert parallelism is not in this version", "use dist_config: {name: fsdp2}"),
    "dist_config.ep_dispatcher": Refused(None, "expert parallelism is not in this version", _REMOVE),
    "dist_config.dcp_path": Refused(
        None, "weights in DCP's format are not in this version", "give a model in Hugging Face format as `model`"
    ),
    "global_batch_size": Refused(
        None, "the number of micro-batches would depend on the number of devices",
        "remove it and give batch.accumulate=N at the start: micro_batch_size × N × devices is the global batch",
    ),
    "save_epochs": Refused(None, "checkpoints at fractions of an epoch are not in this version", "use save_steps"),
    "ld_alpha": Refused(None, "this term of a preference loss is not in this version", _REMOVE),
    "lr_scheduler_config.name": Refused(
        None, "v1 has no schedule of its own", "remove it and give optim.scheduler=cosine at the start"
    ),
    "optim_config.nesterov": Refused(True, "Muon without Nesterov's momentum is not in this version", _REMOVE),
    "optim_config.ns_steps": Refused(5, "another number of Newton-Schulz steps is not in this version", _REMOVE),
}  # fmt: skip

V1 = Dialect("LLaMA-Factory's v1", TRANSLATED, IGNORED, REFUSED, {})
_DATA_SET_KEYS = ("path", "source", "split", "converter", "size", "weight", "streaming")
_FORMATS = {"alpaca": "alpaca", "sharegpt": "sharegpt", "pair": "preference"}
_PREFERENCE = ("pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing")


def is_v1_recipe(document: Document) -> bool:
    """Whether this is a recipe of LLaMA-Factory's v1."""
    if isinstance(document.values.get("model"), dict):
        return False
    return len(set(document.values) & (_MARKS | {"model"})) >= 2


def is_v1_key(key: str) -> bool:
    """Whether `key=value` on the command line of a v1 recipe means v1's key."""
    return key in V1.keys or key in PLUGINS


def translate_v1(document: Document) -> Document:
    """The native document that trains what the v1 recipe trains.

    Raises:
        RecipeError: all errors and unsupported keys at once, each with its place and an alternative.
    """
    _require_training(document)
    flat = _flattened(document)
    recipe, native = LlamaFactoryRecipe(flat, V1), NativeRecipe(document.source)
    _require_names(document, recipe)
    _put_method(recipe, native)
    _put_training(recipe, native)
    _put_parallel(recipe, native)
    _put_output(recipe, native)
    recipe.put_copies(native)
    recipe.raise_complaints()
    _put_data(recipe, native)
    recipe.raise_complaints()
    for why, keys in recipe.ignored_keys().items():
        native.note_ignored(", ".join(keys), why)
    return native.document


def _flattened(document: Document) -> Document:
    """The same values; those inside a plugin's mapping under dotted keys."""
    flat = Document({}, document.source, notes=document.notes, ignored=document.ignored)
    for key, value in document.values.items():
        inner = {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
        flat.places[(key,)] = document.place((key,))
        if key in PLUGINS and value is None:
            continue
        for name, each in inner.items():
            flat.values[name] = each
            if name != key:
                flat.places[(name,)] = document.place(tuple(name.split(".")))
    return flat


def _require_training(document: Document) -> None:
    """Raises:
    RecipeError: the file is for merging; the remedy names the command for it.
    """
    adapter = document.values.get("peft_config")
    if "train_dataset" in document.values or not isinstance(adapter, dict) or not adapter.get("export_dir"):
        return
    base, target = shlex.quote(str(document.values.get("model"))), shlex.quote(str(adapter["export_dir"]))
    each = " --adapter ".join(map(shlex.quote, names_of(adapter.get("adapter_name_or_path")) or ["ADAPTER"]))
    raise RecipeError(
        "peft_config.export_dir: this recipe merges an adapter; it does not train",
        code="not-a-training-recipe",
        remedy=f"ascendtune merge {each} --onto {base} --to {target}",
        where=document.place(("peft_config", "export_dir")),
    )


def _require_names(document: Document, recipe: LlamaFactoryRecipe) -> None:
    for key in PLUGINS:
        value = document.values.get(key)
        if isinstance(value, dict) and not value.get("name"):
            recipe.complain(key, f"{key} has no name", "LLaMA-Factory's v1 needs one", code="recipe-key-missing")


def _put_method(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    tuner = recipe["peft_config.name"]
    native.put("method.tuner", tuner or "full", recipe.place("peft_config.name"))
    for key in ("r", "lora_alpha", "lora_dropout", "target_modules", "freeze_trainable_layers"):
        full = f"peft_config.{key}"
        if recipe.given(full) and key.startswith("freeze") != (tuner == "freeze"):
            recipe.complain(full, f"{full} does not belong to name: {tuner}", _REMOVE, code="conflicting-keys")
    if tuner == "lora":
        for key, becomes in (("r", "rank"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")):
            native.put(f"method.lora.{becomes}", recipe[f"peft_config.{key}"], recipe.place(f"peft_config.{key}"))
        target = recipe["peft_config.target_modules"]
        native.put(
            "method.lora.target",
            "all-linear" if "all" in target else target,
            recipe.place("peft_config.target_modules"),
        )
    if tuner == "freeze":
        count, place = (
            recipe["peft_config.freeze_trainable_layers"],
            recipe.place("peft_config.freeze_trainable_layers"),
        )
        native.put("method.freeze.first_layers" if count <= 0 else "method.freeze.last_layers", abs(count), place)
        if count <= 0:
            native.put("method.freeze.last_layers", 0, place)
        modules = recipe["peft_config.freeze_trainable_modules"]
        if "all" not in modules:
            native.put("method.freeze.modules", modules, recipe.place("peft_config.freeze_trainable_modules"))


def _put_training(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if recipe["max_steps"] is not None and recipe["max_steps"] > 0:
        native.put("optim.max_steps", recipe["max_steps"], recipe.place("max_steps"))
    else:
        native.put("optim.epochs", recipe["num_train_epochs"], recipe.place("num_train_epochs"))
    native.put("optim.scheduler", "constant", f"{recipe.source}, by v1's default")
    _put_optimizer(recipe, native)
    native.put("precision", "bf16" if recipe["bf16"] else "fp32", recipe.place("bf16"))
    if recipe.given("flash_attn"):
        asked = recipe["flash_attn"]
        native.put("model.attention", _ATTENTION[asked], recipe.place("flash_attn"))
        if asked == "flash_attention_2":
            native.note("flash_attn: flash_attention_2: the device's own fused attention is used; run.json says which")


def _put_optimizer(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if recipe["optim_config.name"] is None:
        # torch.optim.AdamW's default.
        native.put("optim.weight_decay", 0.01, f"{recipe.source}, by v1's default")
        return
    native.put("optim.optimizer", recipe["optim_config.name"], recipe.place("optim_config.name"))
    native.put("optim.weight_decay", recipe["optim_config.wd"], recipe.place("optim_config.wd"))
    betas, place = recipe["optim_config.adamw_betas"], recipe.place("optim_config.adamw_betas")
    if len(betas) != 2:
        recipe.complain(
            "optim_config.adamw_betas", "optim_config.adamw_betas needs two numbers", "write [0.9, 0.95]",
            code="invalid-value",
        )  # fmt: skip
        return
    native.put("optim.beta1", betas[0], place)
    native.put("optim.beta2", betas[1], place)


def _put_parallel(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    name = recipe["dist_config.name"]
    if name is None:
        return
    native.put("parallel.strategy", {"fsdp2": "fsdp"}.get(name, name), recipe.place("dist_config.name"))
    config = recipe["dist_config.config_file"]
    if name == "deepspeed" and config is None:
        recipe.complain(
            "dist_config.name", "dist_config: name: deepspeed needs config_file", "give DeepSpeed's JSON",
            code="recipe-key-missing",
        )  # fmt: skip
    elif name == "deepspeed":
        native.put("parallel.deepspeed.config", config, recipe.place("dist_config.config_file"))


def _put_output(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if not recipe.given("output_dir"):
        return
    folder, place = Path(recipe["output_dir"]), recipe.place("output_dir")
    is_name = re.fullmatch(r"\w[\w.-]*", folder.name)
    native.put("run_dir", str(folder.parent / "{name}" if is_name else folder), place)
    if is_name:
        native.put("name", folder.name, place)
    native.note("output_dir: final weights are in `model` below it, checkpoints in ascendtune's format beside them")


def _put_data(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if not recipe.given("train_dataset"):
        recipe.complain(
            "train_dataset", "train_dataset is missing", "give the path of a list of data sets, a file or a hub id",
            code="recipe-key-missing",
        )  # fmt: skip
        return
    formats: set[str] = set()
    for name, key in (("train_dataset", "train"), ("eval_dataset", "eval")):
        if recipe.given(name):
            sets = list(_data_sets(recipe, name, native))
            native.put(f"data.{key}", [spec for spec, _ in sets], recipe.place(name))
            for number, (spec, place) in enumerate(sets):
                native.document.places[("data", key, number)] = place
                formats.add(spec.get("format", "auto"))
    if "preference" in formats and len(formats) > 1:
        recipe.complain(
            "train_dataset", "pairs of answers and conversations cannot be trained on together",
            "name data sets with converter: pair, or without, in one recipe", code="conflicting-keys",
        )  # fmt: skip
        return
    _put_stage(recipe, native, is_pairs="preference" in formats)
    _put_template(recipe, native)
    strategy = recipe["batching_strategy"]
    packs = strategy.startswith("dynamic") and "preference" not in formats
    native.put("data.packing", packs, recipe.place("batching_strategy"))
    if packs:
        native.note(
            f"batching_strategy: {strategy}: rows are packed into sequences of cutoff_len tokens; LLaMA-Factory fills "
            "a budget of cutoff_len × micro_batch_size tokens"
        )
    elif strategy == "padding_free":
        native.note_ignored("batching_strategy", "padding changes no result; data.packing: true saves more of it")


def _put_template(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    found = template_of(recipe["template"]) if recipe.given("template") else "auto"
    if isinstance(found, tuple):
        recipe.complain("template", *found, code="not-in-this-version")
    else:
        native.put("data.template", found, recipe.place("template"))


def _put_stage(recipe: LlamaFactoryRecipe, native: NativeRecipe, *, is_pairs: bool) -> None:
    place = recipe.place("train_dataset")
    native.put("method.stage", "preference" if is_pairs else "sft", place)
    if is_pairs:
        native.put("method.preference.loss", recipe["pref_loss"], recipe.place("pref_loss"))
        for key in _PREFERENCE:
            if recipe.given(key):
                native.put(TRANSLATED[key].becomes, recipe[key], recipe.place(key))
        native.note(
            "method.stage is preference, because the data sets have pairs; for a reward model (`llamafactory-cli rm`) "
            "add method.stage=reward"
        )
        return
    native.note(
        "method.stage is sft; where the rows are pairs of answers (`llamafactory-cli dpo`) add method.stage=preference"
    )
    native.note("each conversation is one row; LLaMA-Factory's v1 makes one row of each answer in it")
    if given := [key for key in ("pref_loss", *_PREFERENCE) if recipe.given(key)]:
        native.note_ignored(", ".join(given), "the data sets have no pairs")


def _data_sets(recipe: LlamaFactoryRecipe, key: str, native: NativeRecipe) -> Iterator[tuple[dict[str, Any], str]]:
    """Each data set that the key names, with its place."""
    path = Path(recipe[key])
    if path.suffix not in (".yaml", ".yml"):
        yield {"path": recipe[key]}, recipe.place(key)
        return
    if not path.is_file():
        recipe.complain(
            key, f"{key}: there is no file {path}",
            "give its path from the working directory; a list on a hub has to be downloaded first", code="path-missing",
        )  # fmt: skip
        return
    listed = read_document(path, "list of data sets")
    for name, entry in listed.values.items():
        place = listed.place((name,))
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            recipe.complaints.append(
                RecipeError(f"{name} has no path", code="recipe-key-missing", remedy="add path: FILE", where=place)
            )
            continue
        spec: dict[str, Any] = {"path": entry["path"]}
        if problem := _problem_of(name, entry):
            what, remedy = problem
            recipe.complaints.append(RecipeError(what, code="not-in-this-version", remedy=remedy, where=place))
            continue
        if converter := entry.get("converter"):
            spec["format"] = _FORMATS[converter]
        if converter == "alpaca":
            native.note(
                f"{name}: instruction and input are joined by a line break; LLaMA-Factory's v1 joins them without"
            )
        if entry.get("source", "hf_hub") != "local" and entry.get("split"):
            spec["split"] = entry["split"]
        if entry.get("size"):
            spec["limit"] = entry["size"]
            native.note(f"{name}: size: the first {entry['size']} rows are read; LLaMA-Factory draws so many at random")
        if entry.get("weight"):
            spec["weight"] = entry["weight"]
        yield spec, place


def _problem_of(name: str, entry: dict[str, Any]) -> tuple[str, str] | None:
    """What is not supported in an entry of a list of data sets, and what to do instead."""
    for key in entry:
        if key not in _DATA_SET_KEYS:
            return f"{name}.{key}: LLaMA-Factory's v1 has no such key", f"known are {', '.join(_DATA_SET_KEYS)}"
    if entry.get("streaming"):
        return (
            f"{name}.streaming is not in this version",
            "remove it: data sets are tokenised once, into a cache on disk",
        )
    if entry.get("source", "hf_hub") not in ("hf_hub", "local"):
        return f"{name}.source: {entry['source']} is not in this version", "use local or hf_hub"
    if entry.get("converter") and entry["converter"] not in _FORMATS:
        return f"{name}.converter: {entry['converter']} is not in this version", f"use one of {', '.join(_FORMATS)}"
    return None
