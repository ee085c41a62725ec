"""From a run, a path or a hub id to the directories that hold weights. Free of torch: mistakes are told at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.rundir import RunDir
from ascendtune.hub.download import fetch_model
from ascendtune.hub.trained import base_of_adapter, weights_of_run


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
        path = weights_of_run(RunDir(path))
    if (path / "adapter_config.json").is_file():
        return Weights(base_of_adapter(path), path)
    return Weights(fetch_model(str(path) if path.exists() else str(path_or_id)))
