"""Trains a few layers and freezes the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from ascendtune.core.errors import RecipeError
from ascendtune.core.suggest import did_you_mean
from ascendtune.core.units import count_of
from ascendtune.recipe.method import FreezeSection, MethodSection


def tune_layers(model: Any, section: MethodSection) -> Any:
    """Freeze `model` except for the modules in the section.

    Raises:
        RecipeError: the model has fewer layers, or no module of a given name.
    """
    freeze = section.freeze
    where, blocks = decoder_blocks(model)
    model.requires_grad_(False)
    chosen = _chosen(blocks, freeze)
    inside = {f"{number}.{name}": module for number, block in chosen for name, module in block.named_modules() if name}
    for module in _matching(inside, freeze.modules, "method.freeze.modules"):
        module.requires_grad_(True)
    if not freeze.modules:
        for _, block in chosen:
            block.requires_grad_(True)
    # Neither modules in the blocks nor modules that contain them (model, model.model), which would train everything.
    outside = {
        name: module
        for name, module in model.named_modules()
        if name and not f"{name}.".startswith(f"{where}.") and not f"{where}.".startswith(f"{name}.")
    }
    # A score head that is not in the base model starts with random weights: frozen, it would stay noise.
    score = ["score"] if section.stage == "reward" and "score" in outside else []
    for module in _matching(outside, [*freeze.extra, *score], "method.freeze.extra"):
        module.requires_grad_(True)
    return model


def decoder_blocks(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Name and list of the decoder blocks: the longest list of modules that is not inside another list.

    Experts of a mixture may be a longer list, but it is inside a block.

    Raises:
        RecipeError: the model has no list of modules.
    """
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and module}
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if not outer:
        raise RecipeError(
            f"{type(model).__name__} does not keep its layers in a list, so method.freeze cannot select them",
            code="layers-unknown",
            remedy="use method.tuner: full or lora",
        )
    name = max(outer, key=lambda each: len(lists[each]))
    return name, lists[name]


def _chosen(blocks: nn.ModuleList, freeze: FreezeSection) -> list[tuple[int, nn.Module]]:
    requested = max(freeze.first_layers + freeze.layers_at_the_end, freeze.spread_layers)
    if requested > len(blocks):
        raise RecipeError(
            f"method.freeze asks for {count_of(requested, 'layer')}, the model has {len(blocks)}",
            code="too-many-freeze-layers",
            remedy="lower method.freeze.first_layers, last_layers or spread_layers; tuner: full trains everything",
        )
    if freeze.spread_layers and len(blocks) % freeze.spread_layers:
        raise RecipeError(
            f"method.freeze.spread_layers: {freeze.spread_layers}: the model has {count_of(len(blocks), 'layer')}, "
            "which is not a multiple of it",
            code="layers-not-divisible",
            remedy="set it to model.new_layers, or to the layers that were added to this model",
        )
    return [(number, blocks[number]) for number in freeze.chosen(len(blocks))]


def _matching(modules: dict[str, nn.Module], names: Iterable[str], key: str) -> list[nn.Module]:
    """Modules with weights whose path ends in one of `names`, such as `mlp` or `self_attn.q_proj`."""
    matches = []
    modules = {path: module for path, module in modules.items() if next(module.parameters(), None) is not None}
    for name in names:
        matching = [module for path, module in modules.items() if f".{path}".endswith(f".{name}")]
        if not matching:
            present = sorted({path.rpartition(".")[2] for path in modules})
            raise RecipeError(
                f"{key}: the model has no module '{name}' there",
                code="unknown-module",
                remedy=did_you_mean(name, present, f"choose from: {', '.join(present)}"),
            )
        matches += matching
    return matches
