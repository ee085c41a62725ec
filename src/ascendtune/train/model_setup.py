"""The model that is trained, ready for an objective: loaded, tuned, with its kernels, and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import RecipeError
from ascendtune.core.log import say, warn
from ascendtune.core.units import count_of
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import model_checks as guard
from ascendtune.train.attention.choice import AttentionChoice, choose_attention
from ascendtune.train.attention.proof import starred
from ascendtune.train.kernel.install import install_kernels
from ascendtune.train.memory import recompute_activations
from ascendtune.train.model import load_model, read_config, score_once
from ascendtune.train.objective.base import Objective, make_objective
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.precision import DTYPES, Precision, choose_precision
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.tuner import apply_tuner


@dataclass(frozen=True)
class ModelSetup:
    model: Any
    """On the device, divided where the strategy divides; adapters are inside it."""
    tuned: Any
    """What is exported at the end: the model, or the PeftModel around it."""
    config: Any
    tokenizer: Tokenizer
    precision: Precision
    attention: AttentionChoice
    kernels: dict[str, Any]
    """Which fused operators were taken, and why others were not."""
    export_dtype: torch.dtype
    """In which type weights leave: as the base came in, adapters as they were trained."""
    objective: Objective
    """Around the model."""
    head_form: HeadForm | None
    """How logits follow from `head(decoder(x))`; None: only the model itself knows."""
    packed: bool
    """Documents may share a sequence."""


def set_up_model(
    recipe: Recipe, directory: Path, adapters: Sequence[Path], strategy: Strategy, *, pad_id: int
) -> ModelSetup:
    """Load the model and make it what the recipe says.

    Args:
        directory: of the model.
        adapters: to go on from, in the order of the recipe.

    Raises:
        RecipeError: the model or a name in the recipe does not fit.
        CheckFailed: packed documents would see each other.
    """
    device = strategy.device
    precision = choose_precision(recipe, device)
    config = read_config(recipe.model, directory)
    if recipe.method.stage == "reward":
        score_once(config, pad_id)
    attention = choose_attention(recipe.model, recipe.method.stage, config, device.attention)
    _require_rows_alone(recipe, attention)
    if attention.is_own and strategy.is_main:
        warn(f"attention is {attention.name}, the model's own, on padded rows; {attention.reason}")
    elif attention.verdict.reason is not None and strategy.is_main:
        say(f"attention is {attention.name}; {attention.reason}")
    tokenizer = Tokenizer.load(directory, recipe.model.new_tokens)
    # The seed decides random weights and adapters, alike on every rank.
    torch.manual_seed(recipe.seed)
    model = load_model(
        recipe.model, recipe.method.stage, directory, config,
        precision=precision, implementation=attention.implementation(),
        vocabulary=tokenizer.vocab_size, seed=recipe.seed,
    )  # fmt: skip
    if not strategy.divides_weights:
        model.to(device.torch_device)
    export_dtype = _export_dtype(recipe, config)
    torch.manual_seed(recipe.seed)
    tuned = apply_tuner(model, recipe.method, adapters)
    # After the tuner: it copies modules, and what is copied must be the model's own.
    kernels = install_kernels(model, recipe.kernel, device, precision)
    if recipe.model.new_tokens and not model.get_input_embeddings().weight.requires_grad:
        warn(
            "the rows of model.new_tokens are frozen at the mean of the others, so the new tokens look alike: "
            "set method.lora.modules_to_save: all-embeddings to train them"
        )
    if strategy.is_main:
        # The trial of a reward model ends before its score.
        _warn_of_silent_weights(model, [each for each in attention.verdict.without_gradient if each != "score.weight"])
        if getattr(config.get_text_config(), "output_router_logits", False):
            warn(
                "config.json asks for the routers' auxiliary loss (output_router_logits): it is not added here, the "
                "loss is that of the tokens alone"
            )
    recompute_activations(model, recipe.memory)
    objective: Any = make_objective(model, recipe, head_form=None, mean_over_ranks=strategy.mean)
    strategy.shard(objective, precision)
    head_form = strategy.with_full_params(objective, lambda: _look_at_head(model, recipe, strategy, precision))
    if head_form is not None:
        objective.head_form = head_form
    packed = strategy.with_full_params(objective, lambda: _packs(model, recipe, strategy, precision, attention))
    # Dropout differs between ranks from here on.
    torch.manual_seed(recipe.seed + strategy.rank)
    return ModelSetup(
        model, tuned, config, tokenizer, precision, attention, kernels, export_dtype,
        objective, head_form, packed,
    )  # fmt: skip


def _look_at_head(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision) -> HeadForm | None:
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    with precision.autocast():
        if recipe.method.stage == "reward":
            guard.require_one_score(model, device, vocabulary)
            return None
        return guard.fusible_head(model, device, vocabulary)


def _packs(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision, attention: AttentionChoice) -> bool:
    """Whether documents share sequences; shown on this device, with this model, where they do."""
    if not may_pack(recipe, attention, is_main=strategy.is_main):
        return False
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    try:
        with precision.autocast():
            guard.prove_isolation(model, device, vocabulary, attention=attention.name, compute=precision.compute)
    except RecipeError as error:
        if recipe.data.packing is True:
            raise
        if strategy.is_main:
            warn(f"data.packing: auto pads: {error.what}")
        return False
    return True


def may_pack(recipe: Recipe, attention: AttentionChoice, *, is_main: bool) -> bool:
    """Whether documents share sequences: where the recipe lets them, and the model keeps them apart.

    Raises:
        RecipeError: the recipe wants it, and the model does not keep them apart.
    """
    if recipe.data.packing is False:
        return False
    if attention.verdict.packed:
        return True
    why = f"this model does not take packed documents: {attention.verdict.why_padded}"
    if recipe.data.packing is True:
        raise RecipeError(why, remedy="set data.packing: auto or false")
    # Of a model with its own attention that has been said.
    if is_main and not attention.is_own:
        warn(f"data.packing: auto pads: {why}")
    return False


def _require_rows_alone(recipe: Recipe, attention: AttentionChoice) -> None:
    """Raise where rows would be padded, and the model computes something else then."""
    if attention.verdict.padded:
        return
    why = f"padding changes what this model computes: {attention.verdict.why_padded}"
    method = recipe.method
    if method.stage == "reward" or (method.stage == "preference" and method.preference.loss != "kto"):
        raise RecipeError(
            f"stage {method.stage} pads a pair's two answers to one length, and {why}",
            code="pairs-need-padding",
            remedy="choose another model, or train on single answers: stage sft, or preference with loss kto",
        )
    if recipe.batch.per_device > 1:
        raise RecipeError(
            why,
            code="rows-need-padding",
            remedy="set batch.per_device: 1; batch.accumulate keeps the size of a step",
        )


def _warn_of_silent_weights(model: Any, silent: list[str]) -> None:
    """Name trained weights that get no gradient; an adapter gets none where its layer's weight gets none."""
    patterns = {each.removesuffix(".weight") for each in silent}
    names = [
        name
        for name, weight in model.named_parameters()
        if weight.requires_grad
        and starred(name.partition(".lora_")[0].replace(".base_layer", "").removesuffix(".weight")) in patterns
    ]
    if names:
        warn(f"no token gives {count_of(len(names), 'weight')} of this model a gradient, first {names[0]}")


def _export_dtype(recipe: Recipe, config: Any) -> torch.dtype:
    if recipe.method.tuner == "lora":
        # As PEFT saves them: they are small, and their effect is smaller than what bf16 rounds off.
        return torch.float32
    if recipe.model.dtype != "auto":
        return DTYPES[recipe.model.dtype]
    source = getattr(config, "dtype", None)
    if recipe.model.init == "random" or source not in DTYPES.values():
        return torch.float32
    assert isinstance(source, torch.dtype)
    return source
