"""From a LLaMA-Factory recipe to a document of ours, every value of which knows where in their file it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ascendtune.core.document import Document
from ascendtune.hub import modelscope
from ascendtune.recipe.llamafactory.data import put_data
from ascendtune.recipe.llamafactory.detect import require_training
from ascendtune.recipe.llamafactory.ignored_keys import WHY_NO_TRACKER
from ascendtune.recipe.llamafactory.keys import TRANSLATED
from ascendtune.recipe.llamafactory.llamafactory_recipe import Native, Theirs, final_weights
from ascendtune.recipe.llamafactory.method import put_method
from ascendtune.recipe.llamafactory.parallel import put_parallel

_ATTENTION = {"auto": "auto", "disabled": "eager", "sdpa": "sdpa", "fa2": "auto", "fa3": "auto"}
# Their default keeps every checkpoint.
_ALL_CHECKPOINTS = 10_000


def translate(document: Document, environment: Mapping[str, str]) -> Document:
    """A document of ours that trains what theirs trains.

    Args:
        document: a recipe that `is_theirs`.
        environment: environment variables; some of LLaMA-Factory's say what a recipe does not.

    Raises:
        RecipeError: all that is wrong or not here at once, each with its place and an alternative.
    """
    require_training(document)
    theirs, native = Theirs(document), Native(document.source)
    put_method(theirs, native)
    _put_model(theirs, native)
    _put_optim(theirs, native)
    _put_precision(theirs, native)
    put_parallel(theirs, native)
    _put_output(theirs, native)
    _put_evaluation(theirs, native)
    _put_copies(theirs, native)
    theirs.raise_complaints()
    put_data(theirs, native, modelscope=modelscope.is_wanted(environment))
    theirs.raise_complaints()
    for why, keys in theirs.inert().items():
        native.note(f"{', '.join(keys)}: no effect: {why}")
    return native.document


def _put_copies(theirs: Theirs, native: Native) -> None:
    for name, key in TRANSLATED.items():
        if key.copied and (theirs.given(name) or key.filled):
            native.put(key.becomes, theirs[name], theirs.place(name))


def _put_model(theirs: Theirs, native: Native) -> None:
    _put_weights(theirs, native)
    if theirs["train_from_scratch"]:
        native.put("model.init", "random", theirs.place("train_from_scratch"))
    if theirs.given("flash_attn"):
        asked = theirs["flash_attn"]
        native.put("model.attention", _ATTENTION[asked], theirs.place("flash_attn"))
        if asked in ("fa2", "fa3"):
            native.note(f"flash_attn: {asked}: the device's own fused attention is used; run.json says which")
    if tokens := [*(theirs["add_tokens"] or ()), *(theirs["add_special_tokens"] or ())]:
        name = "add_tokens" if theirs.given("add_tokens") else "add_special_tokens"
        native.put("model.new_tokens", tokens, theirs.place(name))
    name = "disable_gradient_checkpointing"
    native.put("memory.gradient_checkpointing", not theirs[name], theirs.place(name))


def _put_weights(theirs: Theirs, native: Native) -> None:
    if not theirs.given("model_name_or_path"):
        theirs.complain("model_name_or_path", "model_name_or_path names no model", "give a directory or a hub id")
        return
    path = final_weights(theirs["model_name_or_path"])
    native.put("model.path", path, theirs.place("model_name_or_path"))
    if theirs["model_revision"] != "main":
        native.put("model.revision", theirs["model_revision"], theirs.place("model_revision"))


def _put_optim(theirs: Theirs, native: Native) -> None:
    if theirs["max_steps"] > 0:
        native.put("optim.max_steps", theirs["max_steps"], theirs.place("max_steps"))
    else:
        native.put("optim.epochs", theirs["num_train_epochs"], theirs.place("num_train_epochs"))
    _put_schedule(theirs, native)
    if theirs["optim"] in ("sgd", "adafactor"):
        native.put("optim.optimizer", theirs["optim"], theirs.place("optim"))
    if theirs["optim"] == "adafactor":
        # torch.optim.Adafactor; their Trainer sets scale_parameter: false in transformers' own.
        native.note(
            "optim: adafactor: a step here is learning_rate times the size of the weight that moves, as in its paper; "
            "theirs is learning_rate alone, so the same number trains more slowly here"
        )
    if theirs.given("max_grad_norm"):
        norm = theirs["max_grad_norm"]
        native.put("optim.max_grad_norm", norm if norm != 0 else None, theirs.place("max_grad_norm"))


def _put_schedule(theirs: Theirs, native: Native) -> None:
    asked = theirs["lr_scheduler_type"]
    shape = "constant" if asked == "constant_with_warmup" else asked
    if shape not in ("linear", "cosine", "constant"):
        theirs.complain(
            "lr_scheduler_type", f"lr_scheduler_type: {asked} is not in this version",
            "choose linear, cosine, constant or constant_with_warmup",
        )  # fmt: skip
        return
    native.put("optim.scheduler", shape, theirs.place("lr_scheduler_type"))
    steps, ratio = theirs["warmup_steps"], theirs["warmup_ratio"]
    name = "warmup_steps" if steps else "warmup_ratio"
    if not steps and not ratio:
        return
    if asked == "constant":
        native.note(f"{name}: no effect: lr_scheduler_type: constant has no warm-up; constant_with_warmup has")
    elif steps >= 1 and not float(steps).is_integer():
        theirs.complain(name, f"'{name}: {steps}' is not possible", "give a whole number, or a share below 1")
    elif steps >= 1:
        native.put("optim.warmup_steps", int(steps), theirs.place(name))
    else:
        native.put("optim.warmup_ratio", steps or ratio, theirs.place(name))


def _put_precision(theirs: Theirs, native: Native) -> None:
    half = theirs["bf16"] or theirs["pure_bf16"]
    if half and theirs["fp16"]:
        theirs.complain("fp16", "bf16 and fp16 contradict each other", "keep one of them")
        return
    name = next((key for key in ("pure_bf16", "bf16", "fp16") if theirs[key]), "bf16")
    native.put("precision", "bf16" if half else "fp16" if theirs["fp16"] else "fp32", theirs.place(name))
    if theirs["pure_bf16"]:
        native.put("model.dtype", "bf16", theirs.place("pure_bf16"))
    if not half and not theirs["fp16"]:
        native.note("neither bf16 nor fp16 is set: everything is computed in fp32; precision=bf16 is faster")


def _put_output(theirs: Theirs, native: Native) -> None:
    folder = Path(theirs["output_dir"])
    place = theirs.place("output_dir")
    if not folder.name:
        theirs.complain("output_dir", f"output_dir: {folder} is no directory of its own", "name one below it")
    # Where the last part is no name of a run, such as one with a blank, the directory is taken as it is.
    is_name = re.fullmatch(r"\w[\w.-]*", folder.name)
    native.put("run_dir", str(folder.parent / "{name}" if is_name else folder), place)
    if is_name:
        native.put("name", folder.name, place)
    native.note("output_dir: final weights are in `model` below it, checkpoints in our own form beside them")
    _put_checkpoints(theirs, native)
    trackers = theirs["report_to"] if theirs.given("report_to") else []
    if others := [tracker for tracker in trackers if tracker not in ("none", "all", "tensorboard")]:
        native.note(f"report_to: {', '.join(others)}: no effect: {WHY_NO_TRACKER}")
    native.put("track.tensorboard", bool({"all", "tensorboard"} & {*trackers}), theirs.place("report_to"))
    _require_whole_steps(theirs, "logging_steps")


def _put_checkpoints(theirs: Theirs, native: Native) -> None:
    if theirs["save_strategy"] == "steps":
        if _require_whole_steps(theirs, "save_steps"):
            native.put("checkpoint.every_steps", int(theirs["save_steps"]), theirs.place("save_steps"))
    else:
        native.note(
            f"save_strategy: {theirs['save_strategy']}: checkpoints are written ten times over the run, for resuming"
        )
    limit = theirs["save_total_limit"]
    native.put("checkpoint.keep", limit or _ALL_CHECKPOINTS, theirs.place("save_total_limit"))
    resume = theirs["resume_from_checkpoint"]
    if isinstance(resume, str):
        native.put("checkpoint.resume", resume, theirs.place("resume_from_checkpoint"))
    elif resume is False:
        native.note("resume_from_checkpoint: false: an unfinished run is resumed all the same; checkpoint.resume=never")


def _put_evaluation(theirs: Theirs, native: Native) -> None:
    strategy = theirs["eval_strategy"]
    if strategy == "steps":
        name = "eval_steps" if theirs.given("eval_steps") else "logging_steps"
        if _require_whole_steps(theirs, name):
            native.put("eval.every_steps", int(theirs[name]), theirs.place(name))
    elif strategy == "no" and (theirs["val_size"] or theirs["eval_dataset"]):
        native.note("eval_strategy is no: the evaluation loss is computed all the same, after each epoch")


def _require_whole_steps(theirs: Theirs, name: str) -> bool:
    value = theirs[name]
    if value >= 1 and float(value).is_integer():
        return True
    theirs.complain(
        name, f"'{name}: {value}' is not possible", "give a number of steps; a share of the run is not in this version"
    )
    return False
