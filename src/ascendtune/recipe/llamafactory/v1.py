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
from ascendtune.recipe.llamafactory.llamafactory_recipe import Dialect, LlamaFactoryRecipe, NativeRecipe, names_of
from ascendtune.recipe.llamafactory.quantisation import translate_quantisation
from ascendtune.recipe.llamafactory.v1_keys import ATTENTION, IGNORED, PLUGINS, TRANSLATED, UNSUPPORTED_KEYS

_MARKS = {
    "model_class", "train_dataset", "micro_batch_size", "sample_backend", "batching_strategy", *PLUGINS,
}  # fmt: skip

V1 = Dialect("LLaMA-Factory's v1", TRANSLATED, IGNORED, UNSUPPORTED_KEYS, {})
_DATA_SET_KEYS = ("path", "source", "split", "converter", "size", "weight", "streaming")
_FORMATS = {"alpaca": "alpaca", "sharegpt": "sharegpt", "pair": "preference"}
_PREFERENCE = ("pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing")


def is_v1_recipe(document: Document) -> bool:
    """Whether this is a recipe of LLaMA-Factory's v1."""
    if isinstance(document.values.get("model"), dict):
        return False
    return len(set(document.values) & (_MARKS | {"model"})) >= 2


def is_v1_key(key: str) -> bool:
    """Whether `key=value` on the command line refers to v1's key if the recipe is v1's."""
    return key in V1.keys or key in PLUGINS


def translate_v1(document: Document) -> Document:
    """The native document for the same training as the v1 recipe.

    Raises:
        RecipeError: all errors and unsupported keys at once, each with its place and an alternative.
    """
    _require_training(document)
    flat = _flattened(document)
    recipe, native = LlamaFactoryRecipe(flat, V1), NativeRecipe(document.source, V1)
    _require_names(document, recipe)
    _put_method(recipe, native)
    bits = 4 if recipe["quant_config.name"] == "bnb" else None
    translate_quantisation(recipe, native, section="quant_config.", by_default=bits)
    _put_training(recipe, native)
    _put_parallel(recipe, native)
    _put_output(recipe, native)
    recipe.copy_equivalent_keys(native)
    recipe.raise_errors()
    _put_data(recipe, native)
    recipe.raise_errors()
    for why, keys in recipe.ignored_keys().items():
        native.note_ignored(", ".join(keys), why)
    return native.document


def _flattened(document: Document) -> Document:
    """The same document, with the values in a plugin's mapping under dotted keys."""
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
            recipe.add_error(key, f"{key} has no name", "LLaMA-Factory's v1 needs one", code="recipe-key-missing")


def _put_method(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    tuner = recipe["peft_config.name"]
    native.put("method.tuner", tuner or "full", recipe.place("peft_config.name"))
    for key in ("r", "lora_alpha", "lora_dropout", "target_modules", "freeze_trainable_layers"):
        full = f"peft_config.{key}"
        if recipe.given(full) and key.startswith("freeze") != (tuner == "freeze"):
            recipe.add_error(full, f"{full} does not belong to name: {tuner}", "remove it", code="conflicting-keys")
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
        native.note(
            "num_train_epochs: rows that do not fill the last batch of an epoch are trained on; LLaMA-Factory's v1 "
            "leaves them out"
        )
    native.put("optim.scheduler", "constant", f"{recipe.source}, by v1's default")
    _put_optimizer(recipe, native)
    native.put("precision", "bf16" if recipe["bf16"] else "fp32", recipe.place("bf16"))
    if recipe.given("flash_attn"):
        attention = recipe["flash_attn"]
        native.put("model.attention", ATTENTION[attention], recipe.place("flash_attn"))
        if attention == "flash_attention_2":
            native.note("flash_attn: flash_attention_2: the device's own fused attention is used; run.json shows which")


def _put_optimizer(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if recipe["optim_config.name"] is None:
        # torch.optim.AdamW's default.
        native.put("optim.weight_decay", 0.01, f"{recipe.source}, by v1's default")
        return
    native.put("optim.optimizer", recipe["optim_config.name"], recipe.place("optim_config.name"))
    native.put("optim.weight_decay", recipe["optim_config.wd"], recipe.place("optim_config.wd"))
    betas, place = recipe["optim_config.adamw_betas"], recipe.place("optim_config.adamw_betas")
    if len(betas) != 2:
        recipe.add_error(
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
        recipe.add_error(
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
        recipe.add_error(
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
        recipe.add_error(
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
        native.note_ignored("batching_strategy", "no padding is computed if the model keeps rows apart")


def _put_template(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    template = template_of(recipe["template"]) if recipe.given("template") else "auto"
    if template == "auto":
        native.note(
            "template is not set: the model's own chat template is used; v1 of LLaMA-Factory 0.9.5 writes "
            "qwen3_nothink, whatever the model"
        )
    if isinstance(template, tuple):
        recipe.add_error("template", *template, code="not-in-this-version")
    else:
        native.put("data.template", template, recipe.place("template"))


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
        recipe.add_error(
            key, f"{key}: there is no file {path}",
            "give its path from the working directory; a list on a hub has to be downloaded first", code="path-missing",
        )  # fmt: skip
        return
    listed = read_document(path, "list of data sets")
    for name, entry in listed.values.items():
        place = listed.place((name,))
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            recipe.errors.append(
                RecipeError(f"{name} has no path", code="recipe-key-missing", remedy="add path: FILE", where=place)
            )
            continue
        spec: dict[str, Any] = {"path": entry["path"]}
        if problem := _problem_of(name, entry):
            what, remedy = problem
            recipe.errors.append(RecipeError(what, code="not-in-this-version", remedy=remedy, where=place))
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
    """The unsupported part of an entry in a list of data sets, and the remedy."""
    for key in entry:
        if key not in _DATA_SET_KEYS:
            return f"{name}.{key}: LLaMA-Factory's v1 has no such key", f"known are {', '.join(_DATA_SET_KEYS)}"
    if entry.get("streaming"):
        return (
            f"{name}.streaming is not supported in this version",
            "remove it: data sets are tokenised once, into a cache on disk",
        )
    if entry.get("source", "hf_hub") not in ("hf_hub", "local"):
        return f"{name}.source: {entry['source']} is not supported in this version", "use local or hf_hub"
    # A YAML list is not hashable, so it cannot be looked up in a dict.
    if entry.get("converter") and entry["converter"] not in tuple(_FORMATS):
        return (
            f"{name}.converter: {entry['converter']} is not supported in this version",
            f"use one of {', '.join(_FORMATS)}",
        )
    return None
