"""The work of a step, counted on the recipe's own model on the meta device."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from ascendtune.recipe.deepspeed_config import Config, offloaded_parts, stage_of, zero_config
from ascendtune.train.checkpoint.size import checkpoint_bytes
from ascendtune.train.export import exported_bytes
from ascendtune.train.model import apply_tuner, auto_class, grow_embeddings, trainable_share
from ascendtune.train.model_flops import model_flops
from ascendtune.train.optimizer import states_per_parameter
from ascendtune.train.plan.offload import Offload
from ascendtune.train.plan.training_choices import TrainingChoices
from ascendtune.train.plan.work import Transfer, Work
from ascendtune.train.precision import DTYPES, export_dtype
from ascendtune.train.strategy.choose import ParameterCounts, count_weights
from ascendtune.train.strategy.deepspeed import require_divisible
from ascendtune.train.strategy.fsdp import blocks_of, reduces_once
from ascendtune.train.strategy.gradient_buckets import BUCKET_BYTES
from ascendtune.train.tuner.quantised_linear import quantisable_linears, require_no_parameter_adapted


def count_work(setting: TrainingChoices) -> Work:
    """Count the work of one rank.

    Raises:
        RecipeError: training would refuse the adapters, or a stage of ZeRO.
        Exception: the model class cannot be constructed from its config.
    """
    recipe, ranks = setting.recipe, setting.ranks
    with torch.device("meta"):
        model = auto_class(recipe.method.stage).from_config(
            copy.deepcopy(setting.config),
            dtype=DTYPES[setting.precision.weights],
            trust_remote_code=recipe.model.trust_remote_code,
        )
        grow_embeddings(model, setting.vocabulary)
        weights = count_weights(model, recipe.method, setting.precision)
        linears = quantisable_linears(model, recipe.model)
        tuned = apply_tuner(model, recipe.method, setting.adapters)
        require_no_parameter_adapted(tuned, linears)
    if recipe.method.adapter is not None:
        # Adapters to start from have the size of their files.
        weights = replace(weights, trained=trainable_share(tuned)[0])
    states, trained = states_per_parameter(recipe.optim), weights.trained * weights.trained_bytes
    # Read: gradient, weight, states; written: weight, states. Clipping reads gradients twice and writes them once.
    passes = 3 + 2 * states + (3 if recipe.optim.max_grad_norm is not None else 0)
    config: Config = {}
    if setting.strategy == "deepspeed":
        config = zero_config(recipe, compute=setting.precision.compute, ranks=ranks, hidden_size=None)
        require_divisible(model, setting.precision, stage=stage_of(config), ranks=ranks)
    stage = stage_of(config)
    divided = setting.shards if setting.strategy == "fsdp" else ranks if stage >= 1 else 1
    offload = _offload(setting, model, weights, config, passes * trained // divided)
    return Work(
        flops=model_flops(model, recipe, head_is_fused=setting.head_form is not None),
        transfers=_transfers(setting, model, weights, stage) if ranks > 1 else (),
        updated_bytes=0 if offload and offload.updated else passes * trained // divided,
        checkpoint_bytes=checkpoint_bytes(recipe, tuned, computed_bytes=weights.computed_bytes),
        model_bytes=exported_bytes(tuned, bool(recipe.model.new_tokens), export_dtype(recipe, setting.config)),
        compute=setting.precision.compute,
        model_type=str(getattr(setting.config, "model_type", "")),
        offload=offload,
    )


def _offload(
    setting: TrainingChoices, model: nn.Module, weights: ParameterCounts, config: Config, updated: int
) -> Offload | None:
    """The traffic of offloading to host memory or to a disk; None without offloading.

    Args:
        config: DeepSpeed's configuration; empty for other strategies.
        updated: bytes that clipping and optimizer read and write, on the device or on the host.
    """
    activations = setting.recipe.memory.offload_activations
    offload = None
    if setting.strategy == "fsdp" and setting.recipe.parallel.fsdp.offload:
        offload = _offload_of_fsdp(setting, model, weights, updated)
    elif parts := offloaded_parts(config):
        offload = _offload_of_deepspeed(setting, weights, parts, stage_of(config), updated)
    return replace(offload or Offload(), activations=activations) if offload or activations else None


def _offload_of_fsdp(setting: TrainingChoices, model: nn.Module, weights: ParameterCounts, updated: int) -> Offload:
    """FSDP2 copies a rank's shard of the weights to the device before each all-gather, and its shard of the gradients
    to the host after each reduce-scatter (torch.distributed.fsdp, CPUOffloadPolicy)."""
    frozen = weights.frozen * weights.frozen_bytes
    trained = weights.trained * weights.trained_bytes
    gathers = 2 if setting.recipe.parallel.fsdp.reshard else 1
    once = reduces_once(model, setting.recipe, setting.device, shards=setting.shards)
    return Offload(
        copied_of_micro_batch=(gathers * (frozen + trained) + (0 if once else trained)) // setting.shards,
        copied_of_step=trained // setting.shards if once else 0,
        updated=updated,
    )


def _offload_of_deepspeed(
    setting: TrainingChoices, weights: ParameterCounts, parts: dict[str, str], stage: int, updated: int
) -> Offload:
    """ZeRO-Offload copies the gradients of each micro-batch to the host and updated weights to the device (Ren et al.
    2021, arXiv 2101.06840, section 4.1); `offload_param` copies the weights before each all-gather.

    Args:
        parts: offloaded part -> cpu or nvme.
    """
    ranks, states, computed = setting.ranks, states_per_parameter(setting.recipe.optim), weights.computed_bytes
    gradients, gathered = weights.trained * computed // ranks, 2 * weights.all * computed // ranks
    has_optimizer, has_weights = ("offload_optimizer" in parts), ("offload_param" in parts and stage == 3)
    on_disk = 0
    if parts.get("offload_optimizer") == "nvme":
        on_disk += 2 * (1 + states) * weights.trained * weights.trained_bytes // ranks
    if has_weights and parts["offload_param"] == "nvme":
        on_disk += gathered + gradients
    return Offload(
        copied_of_micro_batch=has_optimizer * gradients + has_weights * gathered,
        copied_of_step=gradients if has_optimizer else 0,
        updated=updated if has_optimizer else 0,
        on_disk=on_disk,
    )


def _transfers(
    setting: TrainingChoices, model: nn.Module, weights: ParameterCounts, stage: int
) -> tuple[Transfer, ...]:
    """DDP: Li et al. 2020, arXiv 2006.15704; FSDP: Zhao et al. 2023, 2304.11277; ZeRO: 1910.02054, section 7."""
    sent_bytes = DTYPES[setting.recipe.parallel.reduce_dtype].itemsize
    gathered = weights.all * weights.computed_bytes
    match setting.strategy:
        case "ddp":
            gradients = weights.trained * min(weights.trained_bytes, sent_bytes)
            calls = _divided(gradients, gradients // BUCKET_BYTES + 1)
            return (Transfer("all_reduce", calls, of_micro_batch=False, in_forward=False),)
        case "fsdp":
            return _transfers_of_fsdp(setting, model, weights, sent_bytes)
        case "deepspeed" if stage == 3:
            sent = weights.trained * weights.computed_bytes
            return (
                Transfer("all_gather", (gathered, gathered), of_micro_batch=True, in_forward=True),
                Transfer("reduce_scatter", (sent,), of_micro_batch=True, in_forward=False),
            )
        case "deepspeed":
            sent = weights.trained * weights.computed_bytes
            return (
                Transfer("reduce_scatter", (sent,), of_micro_batch=stage == 2, in_forward=False),
                Transfer("all_gather", (sent,), of_micro_batch=False, in_forward=False),
            )
        case _:
            return ()


def _transfers_of_fsdp(
    setting: TrainingChoices, model: nn.Module, weights: ParameterCounts, sent_bytes: int
) -> tuple[Transfer, ...]:
    """One call for each block, and one for the parameters outside the blocks."""
    is_full = setting.recipe.method.tuner == "full"
    blocks = max(1, len(blocks_of(model)))
    in_blocks = _divided((weights.all - weights.outside) * weights.computed_bytes, blocks)
    outside = weights.outside * (weights.trained_bytes if is_full else weights.frozen_bytes)
    times = 2 if setting.recipe.parallel.fsdp.reshard else 1
    trained_outside = weights.outside if is_full else 0
    summed = _divided(sent_bytes * (weights.trained - trained_outside), blocks)
    if trained_outside:
        summed = (*summed, sent_bytes * trained_outside)
    shards, copies = setting.shards, setting.ranks // setting.shards
    once = reduces_once(model, setting.recipe, setting.device, shards=shards)
    within = (
        Transfer("all_gather", (*times * in_blocks, outside), of_micro_batch=True, in_forward=True, ranks=shards),
        Transfer("reduce_scatter", summed, of_micro_batch=not once, in_forward=False, ranks=shards),
    )
    if copies == 1:
        return within
    # In bf16 the all-reduce over copies is done after each micro-batch.
    over_copies = tuple(each // shards for each in summed)
    between = Transfer(
        "all_reduce", over_copies, of_micro_batch=sent_bytes == 2, in_forward=False, ranks=copies, spread=True
    )
    return (*within, between)


def _divided(size_bytes: int, calls: int) -> tuple[int, ...]:
    """Sizes of `calls` calls, as equal as possible, that are `size_bytes` together."""
    return tuple(size_bytes * (at + 1) // calls - size_bytes * at // calls for at in range(calls))
