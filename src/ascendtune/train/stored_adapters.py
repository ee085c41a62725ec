"""Adapters that a run starts from, found and checked before the worker starts. Free of torch."""

from __future__ import annotations

import hashlib
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.core.files import digest_of_file
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of
from ascendtune.hub.adapter_files import CONFIG, WEIGHTS, check_adapter, read_adapter_config
from ascendtune.hub.download import fetch_weights
from ascendtune.hub.model_directories import weights_of_run
from ascendtune.hub.oft_adapter import require_known_rotations
from ascendtune.hub.peft_adapter import read_adapter
from ascendtune.hub.safetensors_header import read_safetensors_header
from ascendtune.recipe.method import MethodSection, OftSection
from ascendtune.recipe.unsupported import NOT_SUMMABLE

# Fields of adapter_config.json with which the same weights add the same to a model: they differ between copies, or the
# recipe's values replace them.
_WITHOUT_EFFECT = frozenset({
    "auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "module_dropout",
    "peft_version", "revision", "task_type",
})  # fmt: skip


@dataclass(frozen=True)
class StoredAdapter:
    """An adapter on disk."""

    path: Path
    digest: str
    """SHA-256 of its weights and of the fields of its config that decide what it computes: a resumed run must find the
    same ones."""

    def to_json(self) -> dict[str, str]:
        return {"path": str(self.path), "digest": self.digest}


def recorded_adapters(record: dict[str, Any]) -> list[StoredAdapter]:
    """The adapters that a run started from.

    Args:
        record: run.json.

    Raises:
        MachineError: it is damaged.
    """
    try:
        return [StoredAdapter(Path(each["path"]), each["digest"]) for each in record.get("adapters") or []]
    except (KeyError, TypeError) as error:
        raise MachineError(
            "run.json is damaged: an adapter in it has no path and digest",
            code="record-damaged",
            remedy="restore run.json from a copy; to train again, start a new run with another name",
        ) from error


def find_adapters(section: MethodSection, base: Path | None = None, *, quantised: bool = False) -> list[StoredAdapter]:
    """The adapters in `start_from` of method.lora or method.oft, in order.

    Args:
        base: directory of the model that is trained; None if it is not on this machine.
        quantised: the recipe has model.quantization.

    Raises:
        InputError: an adapter is missing, does not have the type of the recipe's tuner or is not in safetensors, does
            not fit `base` or a quantised base, or cannot be added to the others.
    """
    key, names = f"method.{section.tuner}.start_from", section.start_from
    adapters = [_find(key, name, section, base) for name in names]
    if quantised:
        for adapter in adapters:
            _require_fit_for_quantised(key, adapter.path / CONFIG)
    if len(adapters) > 1:
        for name, adapter in zip(names, adapters, strict=True):
            config = read_adapter_config(adapter.path / CONFIG)
            _require_summand(key, name, config, adapter.path, is_last=adapter is adapters[-1])
        for name, adapter in zip(names[:-1], adapters[:-1], strict=True):
            _require_unreplaced(key, name, adapter.path, adapters[-1].path)
    return adapters


def require_same_adapters(record: dict[str, Any], adapters: list[StoredAdapter]) -> None:
    """Raise if an adapter that the run of a checkpoint started from has changed, or is another adapter now.

    Args:
        record: run.json of that run.
    """
    # A checkpoint holds the trained weights only; the frozen adapters are read from their files at each start.
    before = recorded_adapters(record)
    if len(before) != len(adapters):
        raise RecipeError(
            f"the checkpoint was trained beside {count_of(len(before), 'adapter')} of start_from, and the recipe names "
            f"{len(adapters)}",
            code="adapter-changed",
            remedy="name the same adapters; or start over: checkpoint.resume=never",
        )
    for old, new in zip(before, adapters, strict=True):
        if old.digest != new.digest:
            raise RecipeError(
                "the adapter has changed since the run began",
                code="adapter-changed",
                remedy="restore the original adapter; or start over: checkpoint.resume=never",
                where=new.path,
            )


def require_recorded_adapters(record: dict[str, Any]) -> None:
    """Raise if an adapter of the run has other content on this host than when the run was started.

    Every process reads the adapters from their files, at each start.

    Args:
        record: run.json.
    """
    for adapter in recorded_adapters(record):
        if _digest(adapter.path) != adapter.digest:
            raise RecipeError(
                f"the adapter on {socket.gethostname()} is not the one that the run was started with",
                code="adapter-changed",
                remedy="restore the original adapter, on every host; or start over: checkpoint.resume=never",
                where=adapter.path,
            )


def _find(key: str, name: str, section: MethodSection, base: Path | None) -> StoredAdapter:
    path = fetch_weights(name)
    if (path / "run.json").is_file():
        path = weights_of_run(RunDir(path))
    try:
        check_adapter(path, base)
    except RecipeError as error:
        raise RecipeError(f"{key}: {error.what}", code=error.code, remedy=error.remedy, where=error.where) from error
    config = read_adapter_config(path / CONFIG)
    kind, expected = config["peft_type"], section.tuner.upper()
    if kind != expected:
        is_supported = kind in ("LORA", "OFT")
        other = f"; or set method.tuner: {kind.lower()} and method.{kind.lower()}.start_from" if is_supported else ""
        raise RecipeError(
            f"{key}: the adapter is {kind}, not {expected}",
            code="adapter-type-mismatch",
            remedy=f"give {'a LoRA' if expected == 'LORA' else 'an OFT'} adapter{other}",
            where=path / CONFIG,
        )
    if kind == "OFT":
        require_known_rotations(config, path / CONFIG)
        _require_same_constraint(section.oft, config, path / CONFIG)
    return StoredAdapter(path.resolve(), _digest(path))


def _digest(adapter: Path) -> str:
    config = read_adapter_config(adapter / CONFIG)
    decisive = {
        # PEFT writes sets as lists in any order, and fields without a value or not at all.
        name: sorted(value, key=str) if isinstance(value, list) else value
        for name, value in config.items()
        if name not in _WITHOUT_EFFECT and value is not None
    }
    text = json.dumps([digest_of_file(adapter / WEIGHTS), decisive], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _require_same_constraint(oft: OftSection, config: dict[str, Any], path: Path) -> None:
    """Raise if either the adapter or the recipe has constrained OFT (coft), but not both."""
    was = bool(config.get("coft"))
    if was != oft.coft:
        # The recipe must have coft, too: with it, ranks that hold a shard of the weights are refused.
        raise RecipeError(
            f"method.oft.start_from: the adapter was trained with coft: {str(was).lower()}, which decides how far its "
            "blocks turn",
            code="adapter-form-mismatch",
            remedy=f"set method.oft.coft: {str(was).lower()}",
            where=path,
        )


def _require_fit_for_quantised(key: str, path: Path) -> None:
    """Raise if the adapter in `path` scales the weights of the base model: quantised weights have other norms."""
    if read_adapter_config(path).get("use_dora"):
        raise RecipeError(
            f"{key} with model.quantization: the adapter is DoRA, which scales the weights as they are in the files, "
            "and quantised ones have other norms",
            code="adapter-form-mismatch",
            remedy="remove model.quantization; or merge it into the base model (`ascendtune merge`), and train the "
            "merged model",
            where=path,
        )


def _require_summand(key: str, name: str, config: dict[str, Any], path: Path, *, is_last: bool) -> None:
    """Raise if the adapter does more than add a term to the weights: then several cannot be exported as one."""
    obstacles = dict(NOT_SUMMABLE)
    if not is_last:
        obstacles["modules_to_save"] = "it replaces whole modules, which a later one cannot add to"
    reasons = [why for key, why in obstacles.items() if config.get(key)]
    if not reasons and config.get("target_parameters") and read_adapter(path).expert_loras:
        reasons.append("it changes experts, each by matrices of its own")
    if config.get("bias", "none") != "none":
        reasons.append("it has trained the model's own biases")
    if reasons:
        raise RecipeError(
            f"{key}: {name} cannot be combined with other adapters: {reasons[0]}",
            code="adapters-not-combinable",
            remedy="merge it into the base model (`ascendtune merge`), and train the merged model",
            where=path / CONFIG,
        )


def _require_unreplaced(key: str, name: str, path: Path, last: Path) -> None:
    """Raise if the adapter in `path` changes a module that the adapter in `last` replaces as a whole."""
    saved = read_adapter_config(last / CONFIG).get("modules_to_save") or ()
    changed = {name.partition(".lora_")[0] for name in read_safetensors_header(path / WEIGHTS).tensors}
    # PEFT finds modules by the ends of their names.
    if twice := next((each for each in saved if any(f".{each}." in f".{module}." for module in changed)), None):
        raise RecipeError(
            f"{key}: {name} cannot be combined with the last adapter: it changes '{twice}', which that one replaces "
            "(modules_to_save)",
            code="adapters-not-combinable",
            remedy="merge it into the base model (`ascendtune merge`), and train the merged model",
            where=last / CONFIG,
        )
