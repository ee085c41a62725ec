"""Translates a LLaMA-Factory recipe into a native document; every value keeps its place in the original file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import get_args

from ascendtune.core.document import Document
from ascendtune.hub import modelscope
from ascendtune.recipe.llamafactory.data import translate_data
from ascendtune.recipe.llamafactory.detect import require_training
from ascendtune.recipe.llamafactory.ignored_keys import WHY_NO_TRACKER
from ascendtune.recipe.llamafactory.llamafactory_recipe import V0, LlamaFactoryRecipe, NativeRecipe, final_weights
from ascendtune.recipe.llamafactory.method import translate_method
from ascendtune.recipe.llamafactory.parallel import translate_parallel
from ascendtune.recipe.llamafactory.quantisation import translate_quantisation
from ascendtune.recipe.sections import PROJECT_NAME, TrackerName

_ATTENTION = {"auto": "auto", "disabled": "eager", "sdpa": "sdpa", "fa2": "auto", "fa3": "auto", "off": "eager"}
_SHAPES = {"constant_with_warmup": "constant", "cosine_with_min_lr": "cosine"}
# LLaMA-Factory keeps every checkpoint by default.
_ALL_CHECKPOINTS = 10_000


def translate(document: Document, environment: Mapping[str, str]) -> Document:
    """The native document for the same training as the LLaMA-Factory recipe.

    Args:
        document: a LLaMA-Factory recipe.
        environment: environment variables, some of which complete a recipe in LLaMA-Factory.

    Raises:
        RecipeError: all errors and unsupported keys at once, each with its place and an alternative.
    """
    require_training(document)
    recipe, native = LlamaFactoryRecipe(document), NativeRecipe(document.source, V0)
    translate_method(recipe, native)
    _put_model(recipe, native)
    _put_optim(recipe, native)
    _put_precision(recipe, native)
    translate_parallel(recipe, native)
    _put_output(recipe, native)
    _put_evaluation(recipe, native)
    recipe.copy_equivalent_keys(native)
    translate_data(recipe, native, modelscope=modelscope.is_wanted(environment))
    recipe.raise_errors()
    for why, keys in recipe.ignored_keys().items():
        native.note_ignored(", ".join(keys), why)
    return native.document


def _put_model(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    _put_weights(recipe, native)
    translate_quantisation(recipe, native)
    if recipe["train_from_scratch"]:
        native.put("model.init", "random", recipe.place("train_from_scratch"))
    if recipe.given("flash_attn"):
        attention = recipe["flash_attn"]
        native.put("model.attention", _ATTENTION[attention], recipe.place("flash_attn"))
        if attention in ("fa2", "fa3"):
            native.note(f"flash_attn: {attention}: the device's own fused attention is used; run.json shows which")
    if tokens := [*(recipe["add_tokens"] or ()), *(recipe["add_special_tokens"] or ())]:
        name = "add_tokens" if recipe.given("add_tokens") else "add_special_tokens"
        native.put("model.new_tokens", tokens, recipe.place(name))
    name = "disable_gradient_checkpointing"
    native.put("memory.gradient_checkpointing", not recipe[name], recipe.place(name))


def _put_weights(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if not recipe.given("model_name_or_path"):
        recipe.add_error(
            "model_name_or_path",
            "model_name_or_path names no model",
            "give a directory or a hub id",
            code="recipe-key-missing",
        )
        return
    path = final_weights(recipe["model_name_or_path"])
    native.put("model.path", path, recipe.place("model_name_or_path"))
    if recipe["model_revision"] != "main":
        native.put("model.revision", recipe["model_revision"], recipe.place("model_revision"))


def _put_optim(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if recipe["max_steps"] > 0:
        native.put("optim.max_steps", recipe["max_steps"], recipe.place("max_steps"))
    else:
        native.put("optim.epochs", recipe["num_train_epochs"], recipe.place("num_train_epochs"))
    _put_schedule(recipe, native)
    if recipe["use_muon"]:
        native.put("optim.optimizer", "muon", recipe.place("use_muon"))
        if recipe["weight_decay"]:
            native.note("weight_decay with use_muon: biases and norms do not decay; in LLaMA-Factory they do")
    elif recipe["optim"] in ("sgd", "adafactor"):
        native.put("optim.optimizer", recipe["optim"], recipe.place("optim"))
    if recipe["optim"] == "adafactor" and not recipe["use_muon"]:
        # torch.optim.Adafactor; transformers.Trainer sets scale_parameter: false in transformers' own.
        native.note(
            "optim: adafactor: a step here is learning_rate times the size of the weight that moves, as in its paper; "
            "in LLaMA-Factory it is learning_rate alone, so the same value trains more slowly here"
        )
    if recipe.given("max_grad_norm"):
        norm = recipe["max_grad_norm"]
        native.put("optim.max_grad_norm", norm if norm != 0 else None, recipe.place("max_grad_norm"))


def _put_schedule(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    scheduler = recipe["lr_scheduler_type"]
    shape = _SHAPES.get(scheduler, scheduler)
    if shape not in ("linear", "cosine", "constant"):
        recipe.refuse(
            "lr_scheduler_type",
            f"lr_scheduler_type: {scheduler}",
            f"choose linear, cosine, {', '.join(_SHAPES)} or constant",
        )
        return
    native.put("optim.scheduler", shape, recipe.place("lr_scheduler_type"))
    _put_lowest_rate(recipe, native)
    _put_warmup(recipe, native)


def _put_warmup(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    """Translate `warmup_steps` and `warmup_ratio`, each of which may be a number of steps, or a share below 1."""
    name = "warmup_steps"
    if recipe.given("warmup_ratio"):
        name = "warmup_ratio"
        if recipe["warmup_steps"]:
            native.note_ignored("warmup_steps", "warmup_ratio counts beside it, as with transformers 5; not with 4")
    value = recipe[name]
    if not value:
        return
    if recipe["lr_scheduler_type"] == "constant":
        native.note_ignored(name, "lr_scheduler_type: constant has no warm-up; constant_with_warmup has")
    elif value < 1:
        native.put("optim.warmup_ratio", value, recipe.place(name))
    elif float(value).is_integer():
        native.put("optim.warmup_steps", int(value), recipe.place(name))
    else:
        recipe.refuse_value(name, "give a whole number, or a share below 1")


def _put_lowest_rate(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    """`lr_scheduler_kwargs`, supported for cosine_with_min_lr only: `min_lr`, or `min_lr_rate` as a share."""
    schedule, options = recipe["lr_scheduler_type"], recipe["lr_scheduler_kwargs"]
    if isinstance(options, str):
        with suppress(ValueError):
            options = json.loads(options)
    if schedule != "cosine_with_min_lr":
        if options:
            recipe.refuse("lr_scheduler_kwargs", f"lr_scheduler_kwargs with lr_scheduler_type: {schedule}", "remove it")
        return
    number = next(iter(options.values()), None) if isinstance(options, dict) and len(options) == 1 else None
    if not isinstance(number, int | float) or not {*options} <= {"min_lr", "min_lr_rate"}:
        recipe.add_error(
            "lr_scheduler_kwargs", "lr_scheduler_type: cosine_with_min_lr needs min_lr or min_lr_rate, a number",
            "write lr_scheduler_kwargs: {min_lr_rate: 0.1}", code="invalid-value",
        )  # fmt: skip
        return
    # A rate of 0 is refused by the recipe's own check.
    share = number / (recipe["learning_rate"] or 1) if "min_lr" in options else number
    native.put("optim.min_learning_rate_ratio", share, recipe.place("lr_scheduler_kwargs"))


def _put_precision(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    half = recipe["bf16"] or recipe["pure_bf16"]
    if half and recipe["fp16"]:
        recipe.add_error("fp16", "bf16 and fp16 contradict each other", "keep one of them", code="conflicting-keys")
        return
    name = next((key for key in ("pure_bf16", "bf16", "fp16") if recipe[key]), "bf16")
    native.put("precision", "bf16" if half else "fp16" if recipe["fp16"] else "fp32", recipe.place(name))
    if recipe["pure_bf16"]:
        native.put("model.dtype", "bf16", recipe.place("pure_bf16"))
    if not half and not recipe["fp16"]:
        native.note("neither bf16 nor fp16 is set: all is computed in fp32; on an accelerator precision=bf16 is faster")


def _put_output(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    folder = Path(recipe["output_dir"])
    place = recipe.place("output_dir")
    if not folder.name:
        recipe.add_error(
            "output_dir",
            f"output_dir: {folder} is not a directory for one run",
            "name a directory below it",
            code="invalid-value",
        )
    # A last part that is not a valid run name, such as one with a space, is kept as the directory.
    is_name = re.fullmatch(r"\w[\w.-]*", folder.name)
    native.put("run_dir", str(folder.parent / "{name}" if is_name else folder), place)
    if is_name:
        native.put("name", folder.name, place)
    native.note("output_dir: final weights are in `model` below it, checkpoints in ascendtune's format beside them")
    _put_checkpoints(recipe, native)
    _put_trackers(recipe, native)
    _require_whole_steps(recipe, "logging_steps")


def _put_trackers(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    report_to = recipe["report_to"] if recipe.given("report_to") else []
    native.put("track.tensorboard", bool({"all", "tensorboard"} & {*report_to}), recipe.place("report_to"))
    known = get_args(TrackerName)
    if "all" in report_to:
        # The installed trackers must not decide where a run is sent.
        native.note(f"report_to: all: TensorBoard; a run is sent where a tracker is named ({', '.join(known)})")
    if others := [name for name in report_to if name not in ("none", "all", "tensorboard", *known)]:
        native.note_ignored(f"report_to: {', '.join(others)}", WHY_NO_TRACKER)
    place = recipe.place("report_to" if {*report_to} & {*known} else "use_swanlab")
    trackers = [name for name in known if name in report_to or (name == "swanlab" and recipe["use_swanlab"])]
    if "swanlab" in trackers and recipe["swanlab_mode"] == "local":
        trackers.remove("swanlab")
        native.note("swanlab_mode: local: later, `ascendtune track send RUN --to swanlab --offline` writes its files")
    if not trackers:
        return
    native.put("track.send_to", trackers, place)
    key = "swanlab_project" if "swanlab" in trackers and recipe["use_swanlab"] else "project"
    if key == "project" and not ("trackio" in trackers and recipe.given("project")):
        return
    if re.fullmatch(PROJECT_NAME, recipe[key]):
        native.put("track.project", recipe[key], recipe.place(key))
    else:
        native.note_ignored(key, "the name of a project is letters, digits, '_', '-' and '.' here; set track.project")


def _put_checkpoints(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if recipe["save_strategy"] == "steps":
        if _require_whole_steps(recipe, "save_steps"):
            native.put("checkpoint.every_steps", int(recipe["save_steps"]), recipe.place("save_steps"))
    else:
        native.note(
            f"save_strategy: {recipe['save_strategy']}: checkpoints are written ten times over the run, for resuming"
        )
    limit = recipe["save_total_limit"]
    keeps_all = limit is None or limit <= 0
    native.put("checkpoint.keep", _ALL_CHECKPOINTS if keeps_all else limit, recipe.place("save_total_limit"))
    resume = recipe["resume_from_checkpoint"]
    if isinstance(resume, str):
        native.put("checkpoint.resume", resume, recipe.place("resume_from_checkpoint"))
    elif resume is False:
        native.note("resume_from_checkpoint: false: an unfinished run is resumed all the same; checkpoint.resume=never")


def _put_evaluation(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    strategy, evaluates = recipe["eval_strategy"], bool(recipe["val_size"] or recipe["eval_dataset"])
    if evaluates and recipe["stage"] in ("pt", "sft"):
        native.note("eval_loss is a mean over all labelled tokens; LLaMA-Factory's is one over batches, each a mean")
    if strategy == "steps":
        name = "eval_steps" if recipe.given("eval_steps") else "logging_steps"
        if _require_whole_steps(recipe, name):
            native.put("eval.every_steps", int(recipe[name]), recipe.place(name))
    elif strategy == "no" and evaluates:
        native.note("eval_strategy is no: the evaluation loss is computed nevertheless, after each epoch")


def _require_whole_steps(recipe: LlamaFactoryRecipe, name: str) -> bool:
    value = recipe[name]
    if value >= 1 and float(value).is_integer():
        return True
    recipe.refuse_value(name, "give a number of steps; a fraction of the run is not supported in this version")
    return False
