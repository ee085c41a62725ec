"""The inputs of a merge: runs or adapter directories with their weights, and the files of the base model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.files import expanded
from ascendtune.core.foreign_json import bad_field, read_json_object
from ascendtune.core.rundir import RunDir
from ascendtune.core.suggest import run_suggestion
from ascendtune.hub.adapter_files import weight_in_files
from ascendtune.hub.download import fetch_model, fetch_weights, find_local
from ascendtune.hub.model_config import read_model_config
from ascendtune.hub.model_directories import base_of_adapter, weights_of_run
from ascendtune.hub.peft_adapter import Adapter, read_adapter
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
        """The name in the files for PEFT's name of a weight."""
        return weight_in_files(name, self.where)

    @property
    def table(self) -> str | None:
        """The weight of the input embeddings."""
        return next((name for name in self.where if _is(name, _TABLES)), None)

    @property
    def head(self) -> str | None:
        """The weight of the output embeddings; None if they are the input embeddings."""
        return next((name for name in self.where if is_head(name)), None)


def is_head(name: str) -> bool:
    """Whether `name` is the weight that maps hidden states to logits."""
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


_SHAPES = (
    *("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "num_experts", "tie_word_embeddings"),
)


@dataclass(frozen=True)
class Sources:
    adapters: list[Adapter]
    base: Path
    notes: list[str] = field(default_factory=list)
    """Warnings for the user, one sentence each."""


def find_sources(named: Sequence[str], onto: str | None = None) -> Sources:
    """The adapters and the base on which the first of them was trained.

    Args:
        named: each a run, an adapter directory or a hub id, optionally followed by `=WEIGHT`.
        onto: another base, a directory or a hub id.

    Raises:
        InputError: nothing that can be merged was found.
        MachineError: a hub id that cannot be downloaded.
    """
    places = [_place(each) for each in named]
    adapters = [read_adapter(directory, weight) for directory, weight in places]
    first = places[0][0]
    trained_on = [_base_named_by(each.config) for each in adapters]
    notes = [
        f"{each.directory} was trained on {base}, the first adapter on {trained_on[0]}"
        for each, base in zip(adapters[1:], trained_on[1:], strict=True)
        if base and not _is_same(base, trained_on[0])
    ]
    if onto is None:
        return Sources(adapters, base_of_adapter(first, instead="name the base with --onto; or "), notes)
    base = fetch_model(onto)
    if trained_on[0] and not _is_same(trained_on[0], onto):
        differing = _differences(expanded(trained_on[0]), base)
        shapes = f", which is another model: {', '.join(differing)}" if differing else ""
        notes.append(f"{first} was trained on {trained_on[0]}, and is merged onto {onto}{shapes}")
    return Sources(adapters, base, notes)


def _base_named_by(config: Mapping[str, Any]) -> str:
    """The path of the base, or its id on a hub, followed by `@REVISION` if the config names one."""
    base, revision = str(config.get("base_model_name_or_path") or ""), config.get("revision")
    return f"{base}@{revision}" if base and revision and not expanded(base).exists() else base


def _place(text: str) -> tuple[Path, float]:
    """The adapter's directory and its weight; a path may contain `=` itself."""
    path, weight = expanded(text), 1.0
    if not path.exists() and "=" in text:
        before, _, number = text.rpartition("=")
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", number):
            raise InputError(
                f"'{number}' is not a weight", code="invalid-value", remedy="write a number, as in runs/a=0.5"
            )
        text, path, weight = before, expanded(before), float(number)
    if _is_hub_id(text):
        path = fetch_weights(text)
    if (path / "run.json").is_file():
        return _of_run(RunDir(path)), weight
    if (path / "adapter_config.json").is_file():
        return path, weight
    if (path / "config.json").is_file():
        raise InputError(
            "this is a whole model: there is nothing to merge",
            code="nothing-to-merge",
            remedy="give an adapter, or a run that was trained with method.tuner: lora (or oft); the model can be "
            "used as it is",
            where=path,
        )
    usual = "give a run, or a directory with adapter_config.json"
    what = "there is no such run or adapter"
    if path.exists():
        what = "there is no run or adapter in this directory" if path.is_dir() else "a file is neither run nor adapter"
    raise InputError(
        what,
        code="path-missing",
        remedy=usual if path.exists() else run_suggestion(path, usual),
        where=path,
    )


def _is_hub_id(text: str) -> bool:
    """Whether it is OWNER/NAME or HUB:OWNER/NAME. A name without an owner is a misspelt run: no hub is queried for
    it."""
    if "/" not in text:
        return False
    try:
        return find_local(text, "model") is None
    except InputError:
        return False


def _of_run(run: RunDir) -> Path:
    directory = weights_of_run(run)
    if not (directory / "adapter_config.json").is_file():
        raise InputError(
            "this run trained the weights themselves: there is nothing to merge",
            code="nothing-to-merge",
            remedy=f"{directory} is a whole model, and can be used as it is",
            where=run.path,
        )
    return directory


def _differences(one: Path, other: Path) -> list[str]:
    """`num_hidden_layers 4 -> 6`: differences in keys that decide the set of weights; empty if a config is missing."""
    try:
        before, after = (read_model_config(each / "config.json") for each in (one, other))
    except AscendtuneError:
        return []
    return [f"{key} {before.get(key)} -> {after.get(key)}" for key in _SHAPES if before.get(key) != after.get(key)]


def _is_same(one: str, other: str) -> bool:
    paths = [expanded(each) for each in (one, other)]
    return one == other or (all(each.exists() for each in paths) and paths[0].samefile(paths[1]))
