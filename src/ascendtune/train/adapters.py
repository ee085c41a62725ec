"""Adapters that a run goes on from: found and looked at before the worker starts. Free of torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.files import digest_of_file
from ascendtune.core.rundir import RunDir
from ascendtune.hub.download import fetch_adapter
from ascendtune.hub.trained import weights_of_run
from ascendtune.train.combination import NO_SUMMANDS
from ascendtune.train.method import MethodSection

_KEY = "method.lora.start_from"


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter on disk."""

    path: Path
    digest: str
    """SHA-256 of its weights: a run that goes on must find the same ones."""

    def to_json(self) -> dict[str, str]:
        return {"path": str(self.path), "digest": self.digest}

    @classmethod
    def of(cls, facts: dict[str, str]) -> Adapter:
        return cls(Path(facts["path"]), facts["digest"])


def find_adapters(section: MethodSection) -> list[Adapter]:
    """The adapters of `method.lora.start_from`, in order.

    Raises:
        InputError: one is missing, is no LoRA in safetensors, or cannot be added to the others.
    """
    if section.tuner != "lora":
        return []
    names = section.lora.start_from
    found = [_find(name) for name in names]
    for name, adapter in zip(names, found, strict=True):
        config = _config(adapter.path)
        if len(found) > 1:
            _require_summand(name, config, adapter.path, is_last=adapter is found[-1])
    return found


def _find(name: str) -> Adapter:
    path = fetch_adapter(name)
    if (path / "run.json").is_file():
        path = weights_of_run(RunDir(path))
    weights = path / "adapter_model.safetensors"
    if not weights.is_file():
        raise RecipeError(
            f"{_KEY}: there is no {weights.name}",
            remedy="give a directory that PEFT or ascendtune has saved as safetensors; pickled weights are not loaded",
            where=path,
        )
    return Adapter(path.resolve(), digest_of_file(weights))


def _config(path: Path) -> dict[str, Any]:
    file = path / "adapter_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        kind = config["peft_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(
            f"{_KEY}: the adapter cannot be read", remedy="export or download the adapter again", where=file
        ) from error
    if kind != "LORA":
        raise RecipeError(f"{_KEY}: the adapter is {kind}, not LORA", remedy="give a LoRA adapter", where=file)
    assert isinstance(config, dict)
    return config


def _require_summand(name: str, config: dict[str, Any], path: Path, *, is_last: bool) -> None:
    """Raise where the adapter is more than a term of a sum: then several cannot leave as one."""
    obstacles = dict(NO_SUMMANDS)
    if not is_last:
        obstacles["modules_to_save"] = "it replaces whole modules, which a later one cannot add to"
    found = [why for key, why in obstacles.items() if config.get(key)]
    if config.get("bias", "none") != "none":
        found.append("it has trained the model's own biases")
    if found:
        raise RecipeError(
            f"{_KEY}: {name} cannot be put together with others: {found[0]}",
            remedy="merge it into the base model (`ascendtune merge`), and train on what comes out",
            where=path / "adapter_config.json",
        )
