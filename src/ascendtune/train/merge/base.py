"""The base model as files: which tensor lies where, and what its config says. Nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import InputError
from ascendtune.train.merge.tensor_file import Tensor, TensorFile, read_header

INDEX = "model.safetensors.index.json"
_HEADS = ("lm_head", "embed_out", "output")
_TABLES = ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings")


@dataclass(frozen=True)
class Base:
    directory: Path
    config: dict[str, Any]
    index: dict[str, Any] | None
    files: dict[str, TensorFile]
    where: dict[str, str]
    """Tensor -> file."""

    def tensor(self, name: str) -> Tensor:
        return self.files[self.where[name]].tensors[name]

    def find(self, name: str) -> str | None:
        """The name in the files of what PEFT calls `name`."""
        return find_name(name, self.where)

    @property
    def table(self) -> str | None:
        """The weight of the input embeddings."""
        return next((name for name in self.where if _is(name, _TABLES)), None)

    @property
    def head(self) -> str | None:
        """The weight of the output embeddings; None where they are the input embeddings."""
        return next((name for name in self.where if is_head(name)), None)


def find_name(name: str, files: Container[str]) -> str | None:
    """What a parameter of the model is called in its files: models saved without their head lack its prefix."""
    shorter = name.partition(".")[2]
    candidates = (name, shorter, f"model.{name}", f"transformer.{name}")
    return next((each for each in candidates if each in files), None)


def is_head(name: str) -> bool:
    """Whether `name` is the weight that turns hidden states into logits."""
    return _is(name, _HEADS) and ".layers." not in name


def read_base(directory: Path) -> Base:
    """Headers and config of a model in Hugging Face format.

    Raises:
        InputError: quantised, or its files are not as an index says.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if quantisation := config.get("quantization_config"):
        method = quantisation.get("quant_method", "some method") if isinstance(quantisation, dict) else quantisation
        raise InputError(
            f"the base is quantised ({method}): adding to rounded weights would lose what was learnt",
            remedy="merge onto the original in bf16 or fp16 with --onto, then quantise the result",
            where=directory / "config.json",
        )
    index_path = directory / INDEX
    index = json.loads(index_path.read_text(encoding="utf-8")) if index_path.is_file() else None
    if index is None:
        names = [path.name for path in directory.glob("*.safetensors")]
        if len(names) != 1:
            raise InputError(
                f"{len(names)} weight files and no {INDEX} that says what is in which",
                remedy="copy or download the index of this model too",
                where=directory,
            )
    else:
        names = sorted(set(index["weight_map"].values()))
    files = {name: read_header(directory / name) for name in names}
    where = {tensor: name for name, file in files.items() for tensor in file.tensors}
    if index is not None and (
        missing := [name for name, file in index["weight_map"].items() if where.get(name) != file]
    ):
        raise InputError(
            f"the index and the weight files disagree, first about {missing[0]}",
            remedy="copy or download the model again",
            where=index_path,
        )
    return Base(directory, config, index, files, where)


def _is(name: str, modules: tuple[str, ...]) -> bool:
    module, _, kind = name.rpartition(".")
    return kind == "weight" and module.rpartition(".")[2] in modules
