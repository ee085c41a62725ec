"""From a run, a path or a hub id to the directories that hold weights. Free of torch: mistakes are told at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.errors import InputError
from ascendtune.core.files import expanded
from ascendtune.core.rundir import RunDir
from ascendtune.hub.adapter_files import check_adapter
from ascendtune.hub.download import fetch_model
from ascendtune.hub.trained import base_of_adapter, is_reward_model, weights_of_run
from ascendtune.hub.verify import require_unquantised


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
        InputError: nothing usable is there, the run has no final weights yet, or they give scores and no text.
        MachineError: a hub id that cannot be downloaded.
    """
    path = expanded(path_or_id)
    if (path / "run.json").is_file():
        path = weights_of_run(RunDir(path))
    if (path / "adapter_config.json").is_file():
        _require_text(path)
        model = base_of_adapter(path)
        require_unquantised(model, "generating with")
        check_adapter(path, model)
        return Weights(model, path)
    model = fetch_model(str(path) if path.exists() else str(path_or_id))
    _require_text(model)
    require_unquantised(model, "generating with")
    return Weights(model)


def _require_text(directory: Path) -> None:
    if not is_reward_model(directory):
        return
    place, first = f"'{directory}'", ""
    if (directory / "adapter_config.json").is_file():
        place, first = "'scorer'", f"`ascendtune merge {directory} --to scorer`, then "
    raise InputError(
        "this is a reward model: it gives an answer a score, and cannot write one",
        remedy=f"compare the scores of answers to one question, higher is better: {first}"
        f"transformers.AutoModelForSequenceClassification.from_pretrained({place}) has the score in logits[0, 0], for "
        "the whole conversation written with its chat template; to chat, give a model of another stage",
        where=directory,
    )
