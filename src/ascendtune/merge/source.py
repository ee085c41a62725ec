"""What a user names: runs, adapter directories, weights, and the base they belong to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.files import expanded
from ascendtune.core.nearest import nearest_path
from ascendtune.core.rundir import RunDir
from ascendtune.hub.download import fetch_model
from ascendtune.hub.lora_adapter import Adapter, read_adapter
from ascendtune.hub.model_config import read_model_config
from ascendtune.hub.trained import base_of_adapter, weights_of_run

_SHAPES = (
    *("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "num_experts", "tie_word_embeddings"),
)


@dataclass(frozen=True)
class Sources:
    adapters: list[Adapter]
    base: Path
    notes: list[str] = field(default_factory=list)
    """What a user should look at, one sentence each."""


def find_sources(named: Sequence[str], onto: str | None = None) -> Sources:
    """The adapters and the base on which the first of them was trained.

    Args:
        named: each a run or an adapter directory, with `=WEIGHT` behind it or without.
        onto: another base, a directory or a hub id.

    Raises:
        InputError: nothing that can be merged is there.
        MachineError: a hub id that cannot be downloaded.
    """
    places = [_place(each) for each in named]
    adapters = [read_adapter(directory, weight) for directory, weight in places]
    first = places[0][0]
    trained_on = [str(each.config.get("base_model_name_or_path") or "") for each in adapters]
    notes = [
        f"{each.directory} was trained on {base}, the first adapter on {trained_on[0]}"
        for each, base in zip(adapters[1:], trained_on[1:], strict=True)
        if base and not _is_same(base, trained_on[0])
    ]
    if onto is None:
        return Sources(adapters, _base_of(first), notes)
    base = fetch_model(onto)
    if trained_on[0] and not _is_same(trained_on[0], onto):
        differing = _differences(expanded(trained_on[0]), base)
        shapes = f", which is another model: {', '.join(differing)}" if differing else ""
        notes.append(f"{first} was trained on {trained_on[0]}, and is merged onto {onto}{shapes}")
    return Sources(adapters, base, notes)


def _place(text: str) -> tuple[Path, float]:
    """The adapter's directory and its weight; a path may hold `=` itself."""
    path, weight = expanded(text), 1.0
    if not path.exists() and "=" in text:
        before, _, number = text.rpartition("=")
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", number):
            raise InputError(f"'{number}' is no weight", remedy="write a number, as in runs/a=0.5")
        path, weight = expanded(before), float(number)
    if (path / "run.json").is_file():
        return _of_run(RunDir(path)), weight
    if (path / "adapter_config.json").is_file():
        return path, weight
    if (path / "config.json").is_file():
        raise InputError(
            "this is a whole model: there is nothing to merge",
            remedy="give an adapter, or a run of method.tuner: lora; the model can be used as it is",
            where=path,
        )
    near = None if path.exists() else nearest_path(path)
    raise InputError(
        "no run and no adapter is here" if path.exists() else "there is no such run or adapter",
        remedy=f"did you mean '{near}'?" if near else "give a run, or a directory with adapter_config.json",
        where=path,
    )


def _of_run(run: RunDir) -> Path:
    directory = weights_of_run(run)
    if not (directory / "adapter_config.json").is_file():
        raise InputError(
            "this run trained the weights themselves: there is nothing to merge",
            remedy=f"{directory} is a whole model, and can be used as it is",
            where=run.path,
        )
    return directory


def _base_of(adapter: Path) -> Path:
    try:
        return base_of_adapter(adapter)
    except AscendtuneError as error:
        raise type(error)(
            error.what, remedy=f"name the base with --onto; or {error.remedy}", where=error.where
        ) from error


def _differences(one: Path, other: Path) -> list[str]:
    """`num_hidden_layers 4 -> 6`: in what decides which weights there are; nothing where a config is not here."""
    try:
        before, after = (read_model_config(each / "config.json") for each in (one, other))
    except AscendtuneError:
        return []
    return [f"{key} {before.get(key)} -> {after.get(key)}" for key in _SHAPES if before.get(key) != after.get(key)]


def _is_same(one: str, other: str) -> bool:
    paths = [expanded(each) for each in (one, other)]
    return one == other or (all(each.exists() for each in paths) and paths[0].samefile(paths[1]))
