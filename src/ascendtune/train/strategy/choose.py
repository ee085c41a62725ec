"""Which strategy: as asked, or for `auto` by what the model needs and the device has."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn

from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.parallel import ParallelSection
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.model import read_config
from ascendtune.train.optimizer import states_of
from ascendtune.train.plan import Weights, choose_strategy, memory_need
from ascendtune.train.precision import DTYPES, Precision, choose_precision
from ascendtune.train.strategy import TABLE
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.strategy.fsdp import blocks_of
from ascendtune.train.strategy.group import GroupStrategy, started_by_torchrun, world_size
from ascendtune.train.tuner.lora import whole_modules
from ascendtune.train.tuner.targets import adapter_size


def join(recipe: Recipe, device: Device, model_directory: Path) -> Strategy:
    """The strategy of this process, with its process group, where it has one."""
    section, reason = recipe.parallel, "as asked"
    if section.strategy == "auto":
        section, reason = resolve_auto(recipe, device, model_directory, ranks=world_size())
    if section.strategy == "ddp" and not started_by_torchrun():
        return Strategy(device)
    kind: type[GroupStrategy] = resolve_name(TABLE[section.strategy])
    strategy = kind(device, recipe.model_copy(update={"parallel": section}))
    strategy.reason = reason
    return strategy


def resolve_auto(recipe: Recipe, device: Device, directory: Path, *, ranks: int) -> tuple[ParallelSection, str]:
    """The section with the strategy that `auto` comes to, and the reason as a sentence."""
    name, offload, reason = "ddp", False, "one device"
    if ranks > 1 and device.shares_host_memory:
        reason = "these processes share one memory: nothing would be gained by dividing"
    elif ranks > 1 and recipe.optim.optimizer == "adafactor":
        reason = "Adafactor needs whole matrices"
    elif ranks > 1:
        weights = _weights(recipe, choose_precision(recipe, device), directory)
        need = memory_need(weights, states=states_of(recipe.optim), ranks=ranks)
        name, offload, reason = choose_strategy(need, memory_bytes=device.memory_total_bytes, ranks=ranks)
    fsdp = recipe.parallel.fsdp.model_copy(update={"offload": offload or recipe.parallel.fsdp.offload})
    return recipe.parallel.model_copy(update={"strategy": name, "fsdp": fsdp}), reason


def _weights(recipe: Recipe, precision: Precision, directory: Path) -> Weights:
    """Counted on a model without content."""
    from transformers import AutoModelForCausalLM

    config = read_config(recipe.model, directory)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=recipe.model.trust_remote_code)
    blocks = [_size(block) for block in blocks_of(model)]
    weight = DTYPES[precision.weights].itemsize
    return Weights(
        all=_size(model),
        trained=_trained(model, recipe.method, blocks),
        outside=_size(model) - sum(blocks),
        block=max(blocks, default=0),
        frozen_bytes=weight,
        # Adapters are fp32 in any case.
        trained_bytes=4 if recipe.method.tuner == "lora" else weight,
        computed_bytes=DTYPES[precision.compute].itemsize,
    )


def _trained(model: Any, method: MethodSection, blocks: list[int]) -> int:
    if method.tuner == "full":
        return _size(model)
    if method.tuner == "lora":
        return adapter_size(model, method.lora) + _named(model, whole_modules(model, method.lora))
    freeze = method.freeze
    chosen = blocks[: freeze.first_layers] + blocks[len(blocks) - freeze.layers_at_the_end :]
    return sum(chosen) + _named(model, freeze.extra)


def _named(model: nn.Module, names: list[str]) -> int:
    return sum(_size(module) for path, module in model.named_modules() if path.rpartition(".")[2] in names)


def _size(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())
