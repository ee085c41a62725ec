"""The matrices that get an adapter, from `target` of method.lora or method.oft."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ascendtune.core.errors import RecipeError
from ascendtune.core.suggest import did_you_mean
from ascendtune.core.units import count_of
from ascendtune.recipe.method import ALL_EXPERTS, ALL_LINEAR, LoraSection, OftSection
from ascendtune.train.tuner.mixtures import Mixture, find_mixtures, holds_stacks
from ascendtune.train.tuner.module_use import attributes_read, without_gradient

# Attributes that PEFT's wrapper of a parameter provides in place of the wrapped module.
_ANSWERED = {"weight", "bias"}


@dataclass
class Targets:
    """Full names in the model of the matrices that get an adapter."""

    key: str
    """The recipe's key that they come from."""
    modules: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    """Targets of PEFT's `target_parameters`: matrices of two or three dimensions outside of linear modules."""
    notes: list[str] = field(default_factory=list)
    """Sentences about matrices that `all-linear` leaves out."""


def choose_targets(model: Any, section: LoraSection | OftSection, *, ask: bool = True) -> Targets:
    """The matrices of `model` that get an adapter.

    Args:
        ask: run a forward pass if the structure does not show whether a module gets a gradient.

    Raises:
        RecipeError: a name does not exist in this model, or an adapter on it would have no effect.
    """
    names: list[str] = [section.target] if isinstance(section.target, str) else section.target
    mixtures = find_mixtures(model)
    targets = Targets("method.lora.target" if isinstance(section, LoraSection) else "method.oft.target")
    if ALL_LINEAR in names:
        _add_linear(model, mixtures, targets, ask=ask)
        # OFT supports modules only, and most experts and routers are parameters.
        if sentence := _note_on_mixtures(mixtures, names, adaptable=isinstance(section, LoraSection)):
            targets.notes.insert(0, f"{targets.key}: {sentence}")
    if ALL_EXPERTS in names:
        if not mixtures:
            raise RecipeError(
                f"{targets.key}: {ALL_EXPERTS}: {type(model).__name__} has no experts with a router",
                code="no-experts",
                remedy=f"use {targets.key}: {ALL_LINEAR}",
            )
        targets.parameters += [name for mixture in mixtures for name in mixture.parameters]
        linear = linear_modules(model)
        targets.modules += [name for name in linear if any(mixture.is_expert(name) for mixture in mixtures)]
    for name in names:
        if name not in (ALL_LINEAR, ALL_EXPERTS):
            _add_named(model, name, targets, ask=ask)
    targets.modules = list(dict.fromkeys(targets.modules))
    targets.parameters = list(dict.fromkeys(targets.parameters))
    for name in targets.parameters:
        _require_wrappable(model, name, targets.key)
    return targets


def require_targets_beside(targets: Targets, whole: list[str]) -> None:
    """Raise if PEFT would adapt nothing because it excludes modules that are trained as a whole.

    Args:
        whole: names, as in `modules_to_save`.

    Raises:
        RecipeError: all targets are among these modules.
    """
    adapted = [name for name in targets.modules if not any(f".{name}".endswith(f".{each}") for each in whole)]
    if not adapted and not targets.parameters:
        listed = ", ".join(_families(targets.modules))
        raise RecipeError(
            f"{targets.key}: {listed}: modules_to_save trains these modules whole, and nothing else is adapted",
            code="targets-trained-whole",
            remedy=f"name other modules in {targets.key}, or use method.tuner: freeze",
        )


def linear_modules(model: Any) -> list[str]:
    """Modules that compute x·Wᵀ + b and nothing else, except the head for logits or scores."""
    heads = [model.get_output_embeddings(), getattr(model, "score", None), getattr(model, "classifier", None)]
    return [
        name
        for name, module in model.named_modules()
        if _is_linear(type(module))  # type: ignore[arg-type]  # mypy: no type[Any] is hashable
        and not any(module is head for head in heads)
    ]


@cache
def _is_linear(kind: type) -> bool:
    """Whether modules of this class compute x·Wᵀ + b: known for torch's forward; for another, tested on a small
    instance."""
    if kind.forward in (nn.Linear.forward, Conv1D.forward):  # type: ignore[attr-defined]
        return True
    if not issubclass(kind, nn.Linear):
        return False
    try:
        # On the host, even inside of a meta device context. The random state from which adapters are initialised must
        # not change.
        with torch.device("cpu"), torch.random.fork_rng(devices=[]), torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            weight, bias, input = (torch.randn(shape, generator=generator) for shape in ((3, 4), (3,), (2, 4)))
            small = kind(4, 3, bias=True)
            small.weight.copy_(weight)
            small.bias.copy_(bias)
            return torch.allclose(small(input), nn.functional.linear(input, weight, bias), rtol=1e-5, atol=1e-6)
    except Exception:  # noqa: BLE001  # a class with another constructor or computation
        return False


def adapter_size(model: Any, section: LoraSection | OftSection) -> int:
    """Number of weights in the adapters of `model`, which may be on the meta device."""
    targets = choose_targets(model, section, ask=False)
    modules: list[Any] = [model.get_submodule(name) for name in targets.modules]
    weights = [module.weight for module in modules]
    shapes = [each.shape for each in [*weights, *map(model.get_parameter, targets.parameters)]]
    if isinstance(section, LoraSection):
        # DoRA also trains the norm of each output's weights; modules other than nn.Linear store these in columns.
        lengths: list[int] = [module.weight.shape[0 if isinstance(module, nn.Linear) else 1] for module in modules]
        matrices: int = sum(section.rank * math.prod(shape[:-2]) * sum(shape[-2:]) for shape in shapes)
        return matrices + (sum(lengths) if section.dora else 0)
    total = 0
    # Stacks of experts have three dimensions; they are refused when the adapters are created.
    for *_, inputs in shapes:
        block = section.block_of(inputs)
        total += (1 if section.block_share else inputs // block) * block * (block - 1) // 2
    return total


def short_names(chosen: Iterable[str], every: Iterable[str], parts: int = 1) -> list[str]:
    """Names for a config: their last `parts` components, if these occur in chosen names only."""
    chosen = set(chosen)
    others = {_ending(name, parts) for name in set(every) - chosen}
    return sorted({name if (ending := _ending(name, parts)) in others else ending for name in chosen})


def require_modules(model: Any, key: str, names: list[str]) -> None:
    """Raise if a name is not that of a module.

    Raises:
        RecipeError: a name is unknown.
    """
    for name in names:
        if not any(f".{path}".endswith(f".{name}") for path, _ in model.named_modules()):
            raise _unknown(model, key, name)


def _add_linear(model: Any, mixtures: list[Mixture], targets: Targets, *, ask: bool) -> None:
    candidates = [
        name
        for name in linear_modules(model)
        if not any(mixture.is_expert(name) or mixture.is_router(name) for mixture in mixtures)
    ]
    read = {name for name in candidates if "weight" in attributes_read(model, name)}
    silent = without_gradient(model, _nested(candidates, mixtures)) if ask else set()
    for names, why in (
        (read, "the model's code reads their weight without calling them, so an adapter would do nothing"),
        (silent - read, "they receive no gradient"),
    ):
        if names:
            listed = ", ".join(_families(names))
            targets.notes.append(f"{targets.key}: {ALL_LINEAR} leaves out {listed}: {why}")
    targets.modules += [name for name in candidates if name not in read | silent]
    if not targets.modules:
        raise RecipeError(
            f"{targets.key}: {ALL_LINEAR} finds no linear module in {type(model).__name__} that an adapter works on",
            code="no-linear-module",
            remedy="use method.tuner: full or freeze",
        )


def _note_on_mixtures(mixtures: list[Mixture], names: list[str], *, adaptable: bool) -> str:
    """A note on experts and routers that are not adapted; empty if everything is."""
    routers = {router for mixture in mixtures for router in mixture.routers}
    left_out = [router for router in routers if not any(f".{router}".endswith(f".{name}") for name in names)]
    parts = []
    if ALL_EXPERTS not in names:
        parts.append("the experts" + (f" (add {ALL_EXPERTS} to the list to adapt them)" if adaptable else ""))
    if left_out:
        hint = "; add their names to adapt them" if adaptable else ""
        parts.append(f"the routers ({', '.join(_families(left_out))}{hint})")
    if not mixtures or not parts:
        return ""
    return f"{ALL_LINEAR} leaves out {' and '.join(parts)} of {count_of(len(mixtures), 'mixture')}"


def _nested(names: list[str], mixtures: list[Mixture]) -> list[str]:
    """Modules nested in a part of a block, such as `self_attn.indexer.wk`: these may only select the visible tokens.

    Modules directly in a block's parts are its computation, and modules of mixtures are known.
    """
    holders = {parameter.rsplit(".", 2)[0] for mixture in mixtures for parameter in mixture.parameters}
    return [
        name
        for name in names
        if re.fullmatch(r".+?\.\d+\.(\w+)\.(\w+)\..+", name)
        and not any(name.startswith(f"{each}.") for each in holders)
    ]


def _add_named(model: Any, name: str, targets: Targets, *, ask: bool) -> None:
    """Add the modules with this name; if none is a matrix, parameters with this name or of modules with this name."""
    modules = {path: module for path, module in model.named_modules() if f".{path}".endswith(f".{name}")}
    if matrices := _matrices_among(model, modules):
        _require_effect(model, matrices, name, targets.key, ask=ask)
        targets.modules += matrices
    elif parameters := _parameters_named(model, name, modules):
        targets.parameters += parameters
    elif modules:
        raise RecipeError(
            f"{targets.key}: '{name}' has no matrix that an adapter could change",
            code="lora-target-without-matrix",
            remedy="name linear modules, embeddings, routers or experts",
        )
    else:
        raise _unknown(model, targets.key, name)


def _matrices_among(model: Any, modules: Mapping[str, Any]) -> list[str]:
    linear, head = set(linear_modules(model)), model.get_output_embeddings()
    return [
        path for path, module in modules.items() if path in linear or isinstance(module, nn.Embedding) or module is head
    ]


def _require_effect(model: Any, matrices: list[str], name: str, key: str, *, ask: bool) -> None:
    if read := [path for path in matrices if "weight" in attributes_read(model, path)]:
        place, why = read[0], "the model reads the weight of this module directly and never calls the module"
    elif ask and (silent := without_gradient(model, _nested(matrices, []))):
        place, why = min(silent), "it receives no gradient"
    else:
        return
    raise RecipeError(
        f"{key}: an adapter on {place} would do nothing: {why}",
        code="lora-target-without-effect",
        remedy=f"remove '{name}' from {key}",
    )


def _parameters_named(model: Any, name: str, modules: Mapping[str, Any]) -> list[str]:
    names = []
    for path, parameter in model.named_parameters():
        owner = path.rpartition(".")[0]
        if not (f".{path}".endswith(f".{name}") or owner in modules):
            continue
        holder = model.get_submodule(owner)
        # The biases of stacked experts have two dimensions, too.
        dimensions = (3,) if holds_stacks(holder) else (2, 3)
        if parameter.ndim in dimensions and not isinstance(holder, nn.Conv1d):
            names.append(path)
    return names


def _unknown(model: Any, key: str, name: str) -> RecipeError:
    present = {
        path.rpartition(".")[2]
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding | Conv1D)
    } | {path.rpartition(".")[2] for path, each in model.named_parameters() if each.ndim == 3}
    return RecipeError(
        f"{key}: the model has no module '{name}'",
        code="unknown-module",
        remedy=did_you_mean(name, present, f"choose from: {', '.join(sorted(present))}"),
    )


def _require_wrappable(model: Any, parameter: str, key: str) -> None:
    """Raise if PEFT's wrapper would break the code around the module, or would be bypassed."""
    holder = parameter.rpartition(".")[0]
    attributes = attributes_read(model, holder)
    if "weight" in attributes and parameter.endswith(".weight"):
        raise RecipeError(
            f"{key}: an adapter on {parameter} would do nothing: the model's code reads it without calling {holder}",
            code="lora-target-without-effect",
            remedy=f"remove it from {key}",
        )
    if others := attributes - _ANSWERED:
        raise RecipeError(
            f"{key}: PEFT cannot adapt {parameter}: the model's code also reads {min(others)} of {holder}",
            code="lora-target-not-adaptable",
            remedy=f"remove it from {key}",
        )


def _families(names: Iterable[str]) -> list[str]:
    """Names without the layer number and anything before it, without duplicates."""
    return sorted({re.sub(r"^.*?\.\d+\.", "", name) for name in names})


def _ending(name: str, parts: int) -> str:
    return ".".join(name.split(".")[-parts:])
