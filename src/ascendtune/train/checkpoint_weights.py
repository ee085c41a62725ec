"""The weights of a checkpoint in Hugging Face format, for commands like `ascendtune chat run@120`."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.foreign_json import value_at
from ascendtune.core.locks import file_lock
from ascendtune.core.ownership import require_own
from ascendtune.core.records import read_json_record, read_record
from ascendtune.core.rundir import RunDir
from ascendtune.data.prepare import cached_tokens, open_prepared
from ascendtune.data.template import template_source
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.hub.model_config import read_model_config
from ascendtune.machine.torch_backend.find import open_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.checkpointer import require_intact
from ascendtune.train.checkpoint.content import NamedTensors, damaged_checkpoint, read_weights
from ascendtune.train.export import export_model, exported_parameters
from ascendtune.train.model import ModelToLoad, apply_tuner, load_model, read_config, set_single_score
from ascendtune.train.precision import DTYPES, Precision, export_dtype
from ascendtune.train.recorded_config import require_recorded_configs
from ascendtune.train.stored_adapters import recorded_adapters, require_recorded_adapters
from ascendtune.train.strategy.base import Strategy


def checkpoint_weights(run: RunDir, checkpoint: Path, *, trust_remote_code: bool = False) -> Path:
    """The directory of the model or adapter that training would have exported at this checkpoint.

    The first call writes it into `RUN/exported/`; later calls find it there while the checkpoint is unchanged. The base
    model is loaded on the CPU.

    Args:
        checkpoint: a complete checkpoint of `run`.
        trust_remote_code: run the Python code in the directory of the base model. The recipe's own key is ignored,
            because the run may belong to another user.

    Raises:
        InputError: the checkpoint has DeepSpeed's format, the base model needs code that is not trusted, or the run has
            removed the checkpoint meanwhile.
        MachineError: the checkpoint is damaged, or the disk is full.
    """
    run.require_present()
    target = run.path / "exported" / f"{checkpoint.name}-{_identity(checkpoint)}"
    target.parent.mkdir(0o755, exist_ok=True)
    # Otherwise links in a run of another user could lead to any file of this one.
    require_own(target.parent, remedy="copy the run into a directory of your own")
    with file_lock(target.parent / ".lock", wait=True):
        if not target.is_dir():
            try:
                _export(run, checkpoint, target, trust_remote_code)
            except MachineError as error:
                # Loading the base model takes a while, in which a run that is training may remove the checkpoint.
                if checkpoint.is_dir():
                    raise
                raise InputError(
                    "the checkpoint was removed while it was read: the run trains, and keeps its newest ones only",
                    code="checkpoint-missing",
                    remedy=f"use {run.path.name}@last, or set checkpoint.keep higher",
                    where=checkpoint,
                ) from error
    return target


def _identity(checkpoint: Path) -> str:
    try:
        return hashlib.sha256(read_record(checkpoint / "digests.json")).hexdigest()[:12]
    except OSError as error:
        raise damaged_checkpoint(checkpoint, error) from error


def _export(run: RunDir, checkpoint: Path, target: Path, trust_remote_code: bool) -> None:
    strategy = Strategy(open_device("cpu"))
    try:
        require_intact(checkpoint, strategy)
        form = read_json_record(checkpoint / "state.json").get("form")
    except (OSError, ValueError) as error:
        raise damaged_checkpoint(checkpoint, error) from error
    if form != NamedTensors.form:
        raise InputError(
            f"the checkpoint has DeepSpeed's format ('{form}'), which only a training can read",
            code="checkpoint-form-differs",
            remedy=f"continue the run from it: {shlex.quote(f'checkpoint.resume={checkpoint}')}",
            where=checkpoint,
        )
    record, recipe = run.read(), Recipe.load(run.recipe)
    require_recorded_configs(record)
    require_recorded_adapters(record)
    base, weights = record.get("model_directory"), value_at(record, "resolved", "precision", "weights")
    if not isinstance(base, str) or not isinstance(weights, str) or weights not in DTYPES:
        raise MachineError(
            "run.json does not name the base model, or the type of its weights",
            code="record-damaged",
            remedy="restore run.json from a copy, or use the weights in the directory `model` of the run",
            where=run.run_json,
        )
    directory = Path(base)
    if recipe.model.trust_remote_code and not trust_remote_code and _brings_code(directory):
        raise _code_not_trusted(directory)
    section = recipe.model.model_copy(update={"trust_remote_code": trust_remote_code})
    tokenizer, config = Tokenizer.load(directory, section.new_tokens), read_config(section, directory)
    if recipe.method.stage == "reward":
        set_single_score(config, tokenizer.pad_id)
    # The initial value of some adapters is split off the base weights; it depends on the type in which these were
    # loaded.
    wanted = ModelToLoad(
        section, recipe.method.stage, directory, config,
        precision=Precision("fp32", weights, "weights are only written", "cpu"),
        implementation="eager", vocabulary=tokenizer.vocab_size, seed=recipe.seed,
    )  # fmt: skip
    model = load_model(wanted)
    torch.manual_seed(recipe.seed)
    tuned = apply_tuner(model, recipe.method, [each.path for each in recorded_adapters(record)])
    read_weights(model, checkpoint)
    new_tokens = bool(recipe.model.new_tokens)
    strategy.gather_full(tuned, exported_parameters(tuned, new_tokens), export_dtype(recipe, config), target.parent)
    export_model(tuned, tokenizer, target, _chat_template(record, recipe, tokenizer), new_tokens=new_tokens)


def _brings_code(model: Path) -> bool:
    return "auto_map" in read_model_config(model / "config.json")


def _code_not_trusted(directory: Path) -> InputError:
    return InputError(
        "the base model of this run brings Python code of its own, which may not run",
        code="model-code-not-trusted",
        remedy="read the Python files there, then add --trust-remote-code to `ascendtune chat` or `generate`",
        where=directory,
    )


def _chat_template(record: dict[str, Any], recipe: Recipe, tokenizer: Tokenizer) -> str:
    """The chat template that training exports; determined again if the tokens are not in the cache."""
    try:
        return open_prepared(cached_tokens(record.get("data_hash") or "")).chat_template
    except MachineError:
        if recipe.method.stage == "pretrain":
            return tokenizer.chat_templates.get("default", "")
        return template_source(recipe.data.template, tokenizer)
