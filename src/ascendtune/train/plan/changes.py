"""Changes of a recipe that need less memory, the cheapest first. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ascendtune.recipe.recipe import Recipe


@dataclass(frozen=True)
class Change:
    keys: dict[str, Any]
    """Dotted key -> value."""
    cost: float
    """Estimated loss of speed, as a share; only for ranking. Above 1: the change alters the training itself."""
    why: str


_OTHER_TRAINING = 1.0
_ONCE = ("parallel.strategy", "parallel.deepspeed.stage", "method.tuner")
"""Keys that only one change of a combination may set."""


def single_sequences(recipe: Recipe) -> Change:
    """The change to micro-batches of one sequence."""
    batch = recipe.batch
    keys = {"batch.per_device": 1, "batch.accumulate": batch.accumulate * batch.micro_batch}
    return Change(keys, 0.05, "smaller micro-batches, the same global batch")


def single_changes(recipe: Recipe, *, ranks: int, on_host: bool) -> list[Change]:
    """All single changes that this recipe does not have yet.

    Costs are guesses, only for ranking. Two have a source: recomputation is one more forward pass for each step (Chen
    et al. 2016, arXiv 1604.06174, abstract), sharded weights need half as much communication again as data parallelism
    (Rajbhandari et al. 2019, arXiv 1910.02054).

    Args:
        ranks: number of ranks of the job.
        on_host: whether the device computes in host memory; then offloading gains nothing.
    """
    single = [single_sequences(recipe)] if recipe.batch.micro_batch > 1 else []
    strategy = recipe.parallel.strategy
    if ranks > 1 and strategy in ("auto", "ddp") and recipe.needs_whole_weights is None:
        single.append(
            Change(
                {"parallel.strategy": "fsdp"},
                0.1,
                "weights, gradients and optimizer state are sharded among the devices",
            )
        )
    if not recipe.memory.gradient_checkpointing:
        single.append(
            Change({"memory.gradient_checkpointing": True}, 0.3, "activations are recomputed in the backward pass")
        )
    if not on_host and not recipe.parallel.fsdp.offload and strategy != "deepspeed":
        offloaded = {"parallel.strategy": "fsdp", "parallel.fsdp.offload": True}
        single.append(Change(offloaded, 0.7, "weights, gradients and optimizer state are offloaded to host memory"))
    # A user's DeepSpeed JSON is not changed.
    if strategy == "deepspeed" and recipe.parallel.deepspeed.config is None:
        single += _changes_of_zero(recipe, ranks=ranks, on_host=on_host)
    if recipe.method.tuner != "lora" and recipe.model.init == "pretrained":
        single.append(Change({"method.tuner": "lora"}, _OTHER_TRAINING, "trains adapters instead of all weights"))
    if recipe.model.quantization is None and strategy != "deepspeed" and not recipe.method.lora.dora:
        four_bits = {"model.quantization": "nf4"}
        if recipe.method.adapter is not None:
            single.append(Change(four_bits, _OTHER_TRAINING, "frozen weights take 4.5 bits each"))
        elif recipe.model.init == "pretrained":
            why = "trains adapters over weights of 4.5 bits each"
            single.append(Change({"method.tuner": "lora", **four_bits}, 1.5 * _OTHER_TRAINING, why))
    if recipe.data.max_length >= 1024:
        shorter = {"data.max_length": recipe.data.max_length // 2}
        single.append(Change(shorter, 2 * _OTHER_TRAINING, "longer rows are cut"))
    return single


def _changes_of_zero(recipe: Recipe, *, ranks: int, on_host: bool) -> list[Change]:
    """Changes to higher stages of ZeRO, and to offloading to host memory."""
    section, key = recipe.parallel.deepspeed, "parallel.deepspeed."
    stage, optimizer = key + "stage", {key + "offload_optimizer": "cpu"}
    zero_changes = []
    if ranks > 1 and section.stage < 2:
        zero_changes.append(Change({stage: 2}, 0.05, "optimizer state and gradients are sharded among the devices"))
    if ranks > 1 and section.stage < 3:
        zero_changes.append(
            Change({stage: 3}, 0.15, "weights, gradients and optimizer state are sharded among the devices")
        )
    if on_host:
        return zero_changes
    if section.offload_optimizer == "none":
        why = "optimizer state and gradients are offloaded to host memory"
        zero_changes.append(Change({stage: max(2, section.stage), **optimizer}, 0.5, why))
        if ranks > 1 and section.stage < 3:
            zero_changes.append(Change({stage: 3, **optimizer}, 0.6, f"{why}, weights are sharded among the devices"))
    if section.offload_param == "none":
        keys = {stage: 3, **({} if section.offload_optimizer != "none" else optimizer), key + "offload_param": "cpu"}
        zero_changes.append(Change(keys, 0.7, "weights, gradients and optimizer state are offloaded to host memory"))
    return zero_changes


def changes(recipe: Recipe, *, ranks: int, on_host: bool) -> Iterator[Change]:
    """Single changes and all their combinations, ordered by cost."""
    single = single_changes(recipe, ranks=ranks, on_host=on_host)
    combined = []
    for size in range(1, len(single) + 1):
        for chosen in combinations(single, size):
            keys = {key: value for each in chosen for key, value in each.keys.items()}
            # FSDP is part of FSDP with offloading, and LoRA of LoRA over four bits.
            if any(sum(key in each.keys for each in chosen) > 1 for key in _ONCE):
                continue
            combined.append(Change(keys, sum(each.cost for each in chosen), "; ".join(each.why for each in chosen)))
    yield from sorted(combined, key=lambda each: each.cost)


def changed(recipe: Recipe, change: Change) -> Recipe:
    """The recipe with the change applied.

    Raises:
        RecipeError: the keys of the result conflict.
    """
    values = recipe.model_dump(mode="json")
    for key, value in change.keys.items():
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place[section]
        place[last] = value
    return Recipe.check(values)
