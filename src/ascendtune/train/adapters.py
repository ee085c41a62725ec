"""Adapters that a run goes on from: found and checked before the worker starts. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.files import digest_of_file
from ascendtune.core.rundir import RunDir
from ascendtune.hub.adapter_files import CONFIG, WEIGHTS, check_adapter, read_adapter_config
from ascendtune.hub.download import fetch_weights
from ascendtune.hub.lora_adapter import read_adapter
from ascendtune.hub.trained import weights_of_run
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.unsupported import NOT_SUMMABLE

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


def find_adapters(section: MethodSection, base: Path | None = None) -> list[Adapter]:
    """The adapters of `method.lora.start_from`, in order.

    Args:
        base: directory of the model that is trained; None where it is not on this machine.

    Raises:
        InputError: one is missing, is not a LoRA in safetensors, does not fit `base`, or cannot be added to the others.
    """
    if section.tuner != "lora":
        return []
    names = section.lora.start_from
    found = [_find(name, base) for name in names]
    for name, adapter in zip(names, found, strict=True):
        config = read_adapter_config(adapter.path / CONFIG)
        if len(found) > 1:
            _require_summand(name, config, adapter.path, is_last=adapter is found[-1])
    return found


def require_same_adapters(record: dict[str, Any], adapters: list[Adapter]) -> None:
    """Raise where an adapter that the run goes on from is another file than at its beginning.

    Args:
        record: run.json.
    """
    # Checkpoints hold what trains; the frozen adapters beside it are read from their files every time.
    before = [Adapter.of(each) for each in record.get("adapters", [])]
    for old, new in zip(before, adapters, strict=True):
        if old.digest != new.digest:
            raise RecipeError(
                "the adapter has changed since the run began",
                code="adapter-changed",
                remedy="restore the original adapter; or start over: checkpoint.resume=never",
                where=new.path,
            )


def _find(name: str, base: Path | None) -> Adapter:
    path = fetch_weights(name)
    if (path / "run.json").is_file():
        path = weights_of_run(RunDir(path))
    try:
        check_adapter(path, base)
    except RecipeError as error:
        raise RecipeError(f"{_KEY}: {error.what}", code=error.code, remedy=error.remedy, where=error.where) from error
    kind = read_adapter_config(path / CONFIG)["peft_type"]
    if kind != "LORA":
        raise RecipeError(
            f"{_KEY}: the adapter is {kind}, not LORA",
            code="adapter-not-lora",
            remedy="give a LoRA adapter",
            where=path / CONFIG,
        )
    return Adapter(path.resolve(), digest_of_file(path / WEIGHTS))


def _require_summand(name: str, config: dict[str, Any], path: Path, *, is_last: bool) -> None:
    """Raise where the adapter is more than a term of a sum: then several cannot leave as one."""
    obstacles = dict(NOT_SUMMABLE)
    if not is_last:
        obstacles["modules_to_save"] = "it replaces whole modules, which a later one cannot add to"
    found = [why for key, why in obstacles.items() if config.get(key)]
    if not found and config.get("target_parameters") and read_adapter(path).stacks:
        found.append("it changes experts, each by matrices of its own")
    if config.get("bias", "none") != "none":
        found.append("it has trained the model's own biases")
    if found:
        raise RecipeError(
            f"{_KEY}: {name} cannot be combined with other adapters: {found[0]}",
            code="adapters-not-combinable",
            remedy="merge it into the base model (`ascendtune merge`), and train the merged model",
            where=path / CONFIG,
        )
