"""From a run, a path or a hub id to the directories that hold weights. Free of torch: mistakes are told at once."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.rundir import RunDir
from ascendtune.hub.download import fetch_model


@dataclass(frozen=True)
class Weights:
    """What has to be loaded."""

    model: Path
    """A whole model in Hugging Face format."""
    adapter: Path | None = None
    """A PEFT adapter to put on it."""

    @property
    def tokenizer(self) -> Path:
        """Where the tokenizer and the chat template are: what was trained carries its own."""
        if self.adapter is not None and (self.adapter / "tokenizer.json").is_file():
            return self.adapter
        return self.model


def find_weights(path_or_id: str | Path) -> Weights:
    """The weights of a run directory, a model or adapter directory, or a hub id.

    Raises:
        InputError: nothing usable is there, or the run has no final weights yet.
        MachineError: a hub id that cannot be downloaded.
    """
    path = Path(path_or_id).expanduser()
    if (path / "run.json").is_file():
        path = _of_run(RunDir(path))
    if (path / "adapter_config.json").is_file():
        return Weights(_base_of(path), path)
    return Weights(fetch_model(str(path) if path.exists() else str(path_or_id)))


def _of_run(run: RunDir) -> Path:
    if run.model.is_dir():
        return run.model
    record = run.read()
    command = shlex.join(record.get("argv") or ["ascendtune", "train", str(run.recipe)])
    again = f"`{command}` once more; it goes on from the last checkpoint, if there is one"
    if record["state"] == "running":
        what = "this run has no final weights: it is still training, or died"
        remedy = f"wait for its end; if it died, give {again}"
    else:
        what = f"this run has no final weights: its state is {record['state']}"
        remedy = f"give {again}"
    raise InputError(what, remedy=remedy, where=run.path)


def _base_of(adapter: Path) -> Path:
    config = adapter / "adapter_config.json"
    try:
        base = json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (ValueError, KeyError, OSError) as error:
        raise InputError(
            "the adapter does not say its base model", remedy="export or download the adapter again", where=config
        ) from error
    try:
        return fetch_model(str(base))
    except AscendtuneError as error:
        raise type(error)(
            f"the base model of this adapter, {base}: {error.what}",
            remedy=f"bring the base model back to that place, or correct base_model_name_or_path; {error.remedy}",
            where=config,
        ) from error
