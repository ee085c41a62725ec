"""The base model as files: which tensor lies where, and what its config says. Nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.foreign_json import bad_field, read_json_object
from ascendtune.hub.adapter_files import weight_in_files
from ascendtune.hub.model_config import read_model_config
from ascendtune.hub.safetensors_header import SafetensorsHeader, StoredTensor
from ascendtune.hub.verify import require_unquantised
from ascendtune.hub.weight_files import INDEX, MOST_INDEX_BYTES, read_weight_headers

_HEADS = ("lm_head", "embed_out", "output")
_TABLES = ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings")


@dataclass(frozen=True)
class Base:
    directory: Path
    config: dict[str, Any]
    index: dict[str, Any] | None
    files: dict[str, SafetensorsHeader]
    where: dict[str, str]
    """Tensor -> file."""

    def tensor(self, name: str) -> StoredTensor:
        return self.files[self.where[name]].tensors[name]

    def find(self, name: str) -> str | None:
        """The name in the files of what PEFT calls `name`."""
        return weight_in_files(name, self.where)

    @property
    def table(self) -> str | None:
        """The weight of the input embeddings."""
        return next((name for name in self.where if _is(name, _TABLES)), None)

    @property
    def head(self) -> str | None:
        """The weight of the output embeddings; None where they are the input embeddings."""
        return next((name for name in self.where if is_head(name)), None)


def is_head(name: str) -> bool:
    """Whether `name` is the weight that turns hidden states into logits."""
    return _is(name, _HEADS) and ".layers." not in name


def read_base(directory: Path) -> Base:
    """Headers and config of a model in Hugging Face format.

    Raises:
        RecipeError: quantised, or its files contradict each other.
        MachineError: permission is denied, or the disk fails.
    """
    require_unquantised(directory, "merging onto")
    config = read_model_config(directory / "config.json")
    files = read_weight_headers(directory)
    path = directory / INDEX
    index = read_json_object(path, MOST_INDEX_BYTES) if path.exists() else None
    if index is not None and not isinstance(index.get("metadata", {}), dict):
        raise bad_field(path, "metadata", index["metadata"], "an object")
    where = {tensor: name for name, file in files.items() for tensor in file.tensors}
    return Base(directory, config, index, files, where)


def _is(name: str, modules: tuple[str, ...]) -> bool:
    module, _, kind = name.rpartition(".")
    return kind == "weight" and module.rpartition(".")[2] in modules
