"""The directories with the weights of a run or an adapter."""

from __future__ import annotations

import shlex
from pathlib import Path

from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.files import expanded
from ascendtune.core.rundir import RunDir
from ascendtune.hub.adapter_files import read_adapter_config
from ascendtune.hub.download import fetch_model
from ascendtune.hub.model_config import read_model_config


def weights_of_run(run: RunDir) -> Path:
    """The directory of the run's final weights.

    Raises:
        InputError: there are none yet.
    """
    if run.model.is_dir():
        return run.model
    record = run.read()
    command = shlex.join(record.get("argv") or ["ascendtune", "train", str(run.recipe)])
    again = f"`{command}` once more; it resumes from the last checkpoint, if there is one"
    if record["state"] == "running":
        what = "this run has no final weights: it is still training, or its process was killed"
        remedy = f"wait for its end; if it was killed, use {again}"
    else:
        what = f"this run has no final weights: its state is {record['state']}"
        remedy = f"give {again}"
    raise InputError(what, code="final-weights-missing", remedy=remedy, where=run.path)


def is_reward_model(directory: Path) -> bool:
    """Whether the model or adapter in this directory returns scores instead of text, according to its config.

    Raises:
        RecipeError: the config is invalid.
        MachineError: no permission to read it.
    """
    adapter, model = directory / "adapter_config.json", directory / "config.json"
    if adapter.exists():
        return bool(read_adapter_config(adapter).get("task_type") == "SEQ_CLS")
    classes = read_model_config(model).get("architectures") or []
    return any(name.endswith("ForSequenceClassification") for name in classes)


def base_of_adapter(adapter: Path, *, instead: str = "") -> Path:
    """The model on which the adapter in this directory was trained, according to its config.

    Args:
        instead: another way to name the base, such as `name it with --onto; or `: the remedies begin with it.

    Raises:
        InputError: it names no base model, an invalid one, one that does not exist, or one with damaged files.
        MachineError: a hub id that cannot be downloaded.
    """
    config = adapter / "adapter_config.json"
    names = read_adapter_config(config)
    base = names.get("base_model_name_or_path")
    if not base:
        raise InputError(
            "the adapter does not name its base model",
            code="base-model-unknown",
            remedy=f"{instead}export or download the adapter again",
            where=config,
        )
    try:
        return fetch_model(base, names.get("revision"))
    except AscendtuneError as error:
        correction = f"{instead}restore the base model at that path, or correct base_model_name_or_path; "
        # The config names the right directory if there is one: a file in it is damaged, which the error names.
        is_found = expanded(base).is_dir()
        raise type(error)(
            f"the base model of this adapter, {base}: {error.what}",
            code=error.code,
            remedy=error.remedy if is_found else f"{correction}{error.remedy}",
            where=error.where if is_found else config,
        ) from error
