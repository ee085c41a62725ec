"""Selects the strategy: that of the recipe or, for `auto`, by the model's memory need and the device's memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn

from ascendtune.core.errors import MachineError
from ascendtune.core.units import format_bytes
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.parallel import ParallelSection
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.model import read_config
from ascendtune.train.optimizer import states_per_parameter
from ascendtune.train.precision import DTYPES, Precision, choose_precision
from ascendtune.train.strategy.base import (
    COMFORTABLE,
    GroupStrategy,
    Strategy,
    node_count,
    started_by_torchrun,
    world_size,
)
from ascendtune.train.strategy.fsdp import blocks_of
from ascendtune.train.tuner.lora import modules_to_save
from ascendtune.train.tuner.targets import adapter_size

TABLE = {
    "ddp": "ascendtune.train.strategy.ddp:DdpStrategy",
    "deepspeed": "ascendtune.train.strategy.deepspeed:DeepSpeedStrategy",
    "fsdp": "ascendtune.train.strategy.fsdp:FsdpStrategy",
}


def make_strategy(recipe: Recipe, device: Device, model_directory: Path) -> Strategy:
    """The strategy of this process; joins its process group, if it has one."""
    section, reason = recipe.parallel, "as asked"
    if section.strategy == "auto":
        section, reason = resolve_auto(recipe, device, model_directory, ranks=world_size(), nodes=node_count())
    if section.strategy == "ddp" and not started_by_torchrun():
        return Strategy(device)
    if section.reduce_dtype == "bf16" and not device.computes_bf16:
        raise MachineError(
            f"{device.name} has no bf16, which parallel.reduce_dtype needs",
            code="bf16-unsupported",
            remedy="remove parallel.reduce_dtype",
        )
    kind: type[GroupStrategy] = resolve_name(TABLE[section.strategy])
    return kind(device, recipe.model_copy(update={"parallel": section}), reason)


def resolve_auto(
    recipe: Recipe, device: Device, directory: Path, *, ranks: int, nodes: int = 1
) -> tuple[ParallelSection, str]:
    """The section with the strategy that `auto` selects, and the reason as a sentence."""
    name, offload, reason = "ddp", False, "one device"
    if ranks > 1 and device.shares_host_memory:
        reason = "these processes share one memory: nothing would be gained by dividing"
    elif ranks > 1 and recipe.model.quantization is not None:
        reason = "quantised weights are whole on every device with every strategy"
    elif ranks > 1 and recipe.needs_whole_weights is not None:
        reason = recipe.needs_whole_weights
    elif ranks > 1:
        weights = _weights(recipe, choose_precision(recipe, device), directory)
        shards = recipe.parallel.fsdp.shards(ranks=ranks, nodes=nodes)
        need = memory_need(weights, states=states_per_parameter(recipe.optim), ranks=shards)
        name, offload, reason = choose_strategy(need, memory_bytes=device.memory_total_bytes, ranks=shards)
    fsdp = recipe.parallel.fsdp.model_copy(update={"offload": offload or recipe.parallel.fsdp.offload})
    return recipe.parallel.model_copy(update={"strategy": name, "fsdp": fsdp}), reason


def _weights(recipe: Recipe, precision: Precision, directory: Path) -> ParameterCounts:
    """Counts of the model's parameters, from a model on the meta device."""
    from transformers import AutoModelForCausalLM

    config = read_config(recipe.model, directory)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=recipe.model.trust_remote_code)
    return count_weights(model, recipe.method, precision)


def count_weights(model: Any, method: MethodSection, precision: Precision) -> ParameterCounts:
    """Parameter counts of `model`, which may be on the meta device and has no tuner applied yet."""
    blocks = [_size(block) for block in blocks_of(model)]
    weight = DTYPES[precision.weights].itemsize
    trained = _trained(model, method, blocks)
    return ParameterCounts(
        all=_size(model),
        trained=trained,
        # Adapters, and copies of modules that are trained beside them, are not part of the model.
        frozen=_size(model) - (0 if method.adapter is not None else trained),
        outside=_size(model) - sum(blocks),
        block=max(blocks, default=0),
        frozen_bytes=weight,
        # Adapters are fp32 in any case.
        trained_bytes=4 if method.adapter is not None else weight,
        computed_bytes=DTYPES[precision.compute].itemsize,
    )


def _trained(model: Any, method: MethodSection, blocks: list[int]) -> int:
    if method.tuner == "full":
        return _size(model)
    if (adapter := method.adapter) is not None:
        return adapter_size(model, adapter) + _named(model, modules_to_save(model, adapter))
    chosen = [blocks[number] for number in method.freeze.chosen(len(blocks)) if 0 <= number < len(blocks)]
    return sum(chosen) + _named(model, method.freeze.extra)


def _named(model: nn.Module, names: list[str]) -> int:
    return sum(_size(module) for path, module in model.named_modules() if path.rpartition(".")[2] in names)


def _size(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters, and bytes per parameter."""

    all: int
    """Parameters of the model without its adapters."""
    trained: int
    frozen: int
    outside: int
    """Parameters outside the decoder blocks: embeddings, head, final norm."""
    block: int
    """Parameters of the largest decoder block."""
    frozen_bytes: int
    trained_bytes: int
    computed_bytes: int
    """Bytes of a parameter in the dtype of matrix products."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes on each device before the first activation."""

    ddp: int
    fsdp: int


def memory_need(weights: ParameterCounts, *, states: int, ranks: int) -> MemoryNeed:
    """Memory need of each strategy: weights, gradients of the trained ones, and optimizer state.

    Args:
        states: tensors of a parameter's size in the optimizer's state: 2 for AdamW.
    """
    share = weights.trained / weights.all
    resting = weights.frozen * weights.frozen_bytes + weights.trained * weights.trained_bytes * (2 + states)
    # Autocast keeps its casts until the forward pass ends.
    copies = weights.all * weights.computed_bytes if weights.computed_bytes < weights.frozen_bytes else 0
    weight_bytes = share * weights.trained_bytes + (1 - share) * weights.frozen_bytes
    # Gathered at the same time: parameters outside the blocks, with gradients, and two blocks: this one and the next.
    outside = weights.outside * (weight_bytes * (1 + share) + (weights.computed_bytes if copies else 0))
    blocks = 2 * weights.block * weights.computed_bytes * (1 + share)
    return MemoryNeed(resting + copies, resting // ranks + int(outside + blocks))


def choose_strategy(need: MemoryNeed, *, memory_bytes: int, ranks: int) -> tuple[str, bool, str]:
    """Name of the strategy, whether weights are offloaded to the host, and the reason as a sentence."""
    limit = int(memory_bytes * COMFORTABLE)
    limit_text = f"{format_bytes(limit)} ({COMFORTABLE:.0%} of the device's {format_bytes(memory_bytes)})"
    need_text = f"weights, gradients and optimizer state take {format_bytes(need.ddp)}"
    if need.ddp <= limit:
        return "ddp", False, f"{need_text} on each device, which fits into {limit_text}"
    divided = f"{format_bytes(need.fsdp)} when divided among {ranks} devices"
    if need.fsdp <= limit:
        return "fsdp", False, f"{need_text}, more than {limit_text}; {divided}"
    return "fsdp", True, f"{need_text}, {divided}, both more than {limit_text}; they are offloaded to host memory"
