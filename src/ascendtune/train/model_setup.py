"""Sets up the model for training: loading, attention, tuner and kernels, sharding; checks what the model supports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import CheckFailed, RecipeError
from ascendtune.core.foreign_json import first_line
from ascendtune.core.log import say, warn
from ascendtune.data.prepare import PreparedData
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.hub.gpu_functions import missing_packages, use_plain_functions
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import model_checks
from ascendtune.train.attention.choice import AttentionChoice, choose_attention
from ascendtune.train.attention.model_type import require_rows_alone
from ascendtune.train.attention.recurrence import keep_documents_apart
from ascendtune.train.deferred_weights import move_in_parts
from ascendtune.train.kernel.install import KernelChoice, install_kernels
from ascendtune.train.model import (
    ModelToLoad,
    apply_tuner,
    load_in_parts,
    read_config,
    recompute_activations,
    set_single_score,
)
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.precision import Precision, choose_precision, promote_layer_norms
from ascendtune.train.stored_adapters import recorded_adapters
from ascendtune.train.strategy.base import RootModule, Strategy, node_count
from ascendtune.train.tuner.initial_values import computing_initial_values
from ascendtune.train.tuner.quantised_linear import quantisable_linears, quantising, require_no_parameter_adapted


@dataclass(frozen=True)
class ModelSetup:
    """The model as it is trained, and the choices made for it."""

    config: Any
    precision: Precision
    scaler: torch.amp.GradScaler | None
    """Scales fp16 losses in the loop."""
    attention: AttentionChoice
    kernels: dict[str, KernelChoice]
    tokenizer: Tokenizer
    root: RootModule
    """The module around the model, sharded if the strategy shards."""
    tuned: Any
    """The model, or PEFT's wrapper around it: it is exported."""


def set_up_model(record: dict[str, Any], recipe: Recipe, strategy: Strategy, prepared: PreparedData) -> ModelSetup:
    """Load the model, add the trained parts, and shard it if the strategy does so."""
    device, directory = strategy.device, Path(record["model_directory"])
    precision = choose_precision(recipe, device)
    # Before anything is loaded: the device may have no scaler for gradients in host memory.
    scaler = strategy.loop_precision(precision).scaler(device, on_host=not strategy.updates_on_device)
    if node_count() > 1:
        _require_same_files(record, recipe, strategy)
    config = read_config(recipe.model, directory)
    if recipe.method.stage == "reward":
        set_single_score(config, prepared.pad_id)
    attention = _choose_attention(recipe, config, strategy)
    tokenizer = Tokenizer.load(directory, recipe.model.new_tokens)
    with strategy.uneven_work("loads the model"):
        wanted = ModelToLoad(
            recipe.model, recipe.method.stage, directory, config,
            precision=precision, implementation=attention.implementation(), vocabulary=tokenizer.vocab_size,
            seed=recipe.seed,
        )  # fmt: skip
        model, fill = load_in_parts(wanted, stays=strategy.keeps_host_weights)
        linears = quantisable_linears(model, recipe.model)
        if not linears and not strategy.shards_weights:
            move_in_parts(model, fill, device.torch_device)
    torch.manual_seed(recipe.seed)
    adapters = [each.path for each in recorded_adapters(record)]
    tuned = apply_tuner(model, recipe.method, adapters, strategy.fill_on_main)
    require_no_parameter_adapted(tuned, linears)
    fill = computing_initial_values(tuned, recipe.method, fill, strategy.fill_on_main)
    if linears:
        fill = quantising(linears, recipe.model, fill, device.torch_device)
    with strategy.uneven_work("loads the model"):
        if linears and not strategy.shards_weights:
            # After the tuner, which adds adapters to plain linear layers only.
            move_in_parts(model, fill, device.torch_device)
        # After the tuner: it copies modules, and must copy the model's own ones.
        kernels = install_kernels(model, recipe.kernel, device, precision, fill)
        set_up_recurrent_layers(model, strategy)
        promote_layer_norms(model)
        model_checks.warn_of_untrained_parts(model, recipe, config, attention, is_main=strategy.is_main)
        if strategy.is_main:
            model_checks.warn_of_shared_frequencies(recipe, config)
        recompute_activations(model, recipe.memory)
        root = RootModule(model)
    # Apart from the work above, whose duration differs between hosts: ranks of fsdp synchronise before they fill.
    with strategy.uneven_work("loads the model"):
        strategy.shard(root, precision, fill)
    return ModelSetup(config, precision, scaler, attention, kernels, tokenizer, root, tuned)


def _require_same_files(record: dict[str, Any], recipe: Recipe, strategy: Strategy) -> None:
    if recipe.model.init == "pretrained":
        model_checks.require_same_files(Path(record["model_directory"]), strategy.gather)
    if reference := record.get("reference_directory"):
        model_checks.require_same_files(Path(reference), strategy.gather)


def _choose_attention(recipe: Recipe, config: Any, strategy: Strategy) -> AttentionChoice:
    attention = choose_attention(recipe.model, recipe.method.stage, config, strategy.device.attention)
    if not attention.support.padded:
        require_rows_alone(recipe, str(attention.support.why_padded))
    if attention.is_own and strategy.is_main:
        warn(f"attention is {attention.name}, the model's own, on padded rows; {attention.reason}")
    elif attention.support.reason is not None and strategy.is_main:
        say(f"attention is {attention.name}; {attention.reason}")
    return attention


def set_up_recurrent_layers(model: Any, strategy: Strategy) -> None:
    """Keep packed documents apart in recurrent layers, whose functions of packages for GPUs are used on GPUs only.

    There, name the packages that are not installed.
    """
    device = strategy.device
    if device.shares_host_memory:
        use_plain_functions(model)
    elif device.runs_gpu_packages and strategy.is_main and (packages := missing_packages(model)):
        warn(
            "recurrent layers of this model are computed in plain torch, which is correct and much slower: install "
            + " and ".join(packages)
        )
    keep_documents_apart(model)


def check_head(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision) -> HeadForm | None:
    """Form of the model's logits; None if the head must not be fused. This is the first computation of the whole model.

    Raises:
        RecipeError: its scores or logits cannot be trained, or it cannot compute in this precision.
    """
    try:
        with precision.autocast():
            return _form_of_head(model, recipe, strategy)
    except (RuntimeError, TypeError, ValueError) as error:
        if precision.compute == "fp32" or isinstance(error, torch.OutOfMemoryError):
            raise
        try:
            _form_of_head(model, recipe, strategy)
        except Exception:  # noqa: BLE001  # fails without autocast, too: the precision is not the cause
            raise error from None
        raise RecipeError(
            f"{type(model).__name__}'s own code does not compute in {precision.compute}: {first_line(error)}",
            code="model-without-mixed-precision",
            remedy="set precision: fp32",
        ) from error


def _form_of_head(model: Any, recipe: Recipe, strategy: Strategy) -> HeadForm | None:
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    if recipe.method.stage == "reward":
        model_checks.require_one_score(model, device, vocabulary)
        return None
    return model_checks.fusible_head(model, device, vocabulary)


def isolates(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision, attention: AttentionChoice) -> bool:
    """Whether documents go through the model without padding; if so, their isolation is checked on this device."""
    if recipe.pads_always or recipe.has_rows_alone:
        return False
    if not may_isolate(recipe, attention, is_main=strategy.is_main):
        return False
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    try:
        with precision.autocast():
            model_checks.prove_isolation(model, device, vocabulary, attention=attention.name, compute=precision.compute)
    except RecipeError as error:
        if recipe.data.packing is True:
            raise
        if strategy.is_main and recipe.data.packing:
            warn(f"data.packing: auto pads: {error.what}")
        return False
    except CheckFailed as error:
        # Nothing is packed: with padded rows the results are those of the recipe.
        if recipe.data.packing is not False:
            raise
        if strategy.is_main:
            warn(f"rows are padded: {error.what}")
        return False
    return True


def may_isolate(recipe: Recipe, attention: AttentionChoice, *, is_main: bool) -> bool:
    """Whether this attention isolates documents that go through the model without padding.

    Raises:
        RecipeError: it does not, and the recipe packs.
    """
    if attention.support.packed:
        return True
    why = f"this model does not support packed documents: {attention.support.why_padded}"
    if recipe.data.packing is True:
        raise RecipeError(why, code="packing-unsupported", remedy="set data.packing: auto or false")
    # The warning about a model with its own attention has been logged already.
    if is_main and recipe.data.packing and not attention.is_own:
        warn(f"data.packing: auto pads: {why}")
    return False
