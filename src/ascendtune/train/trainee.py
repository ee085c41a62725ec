"""The model that is trained, ready for an objective: loaded, tuned, with its kernels, and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import RecipeError
from ascendtune.core.log import warn
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.train import guard
from ascendtune.train.kernel.install import install_kernels
from ascendtune.train.memory import recompute_activations
from ascendtune.train.model import choose_attention, load_model, read_config, score_once
from ascendtune.train.precision import DTYPES, Precision, choose_precision
from ascendtune.train.recipe import Recipe
from ascendtune.train.stage import make_objective
from ascendtune.train.stage.base import Objective
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.tuner import apply_tuner


@dataclass(frozen=True)
class Trainee:
    model: Any
    """On the device, divided where the strategy divides; adapters are inside it."""
    tuned: Any
    """What is exported at the end: the model, or the PeftModel around it."""
    config: Any
    tokenizer: Tokenizer
    precision: Precision
    attention: dict[str, str]
    """Its name, and the reason for it."""
    kernels: dict[str, Any]
    """Which fused operators were taken, and why others were not."""
    export_dtype: torch.dtype
    """In which type weights leave: as the base came in, adapters as they were trained."""
    objective: Objective
    """Around the model."""
    plain_head: bool
    """Logits are `head(decoder(x))` and nothing else."""
    packed: bool
    """Documents may share a sequence."""


def make_trainee(
    recipe: Recipe, directory: Path, adapters: Sequence[Path], strategy: Strategy, *, pad_id: int
) -> Trainee:
    """Load the model and make it what the recipe says.

    Args:
        directory: of the model.
        adapters: to go on from, in the order of the recipe.

    Raises:
        RecipeError: the model or a name in the recipe does not fit.
        FoundWrong: packed documents would see each other.
    """
    device = strategy.device
    precision = choose_precision(recipe, device)
    config = read_config(recipe.model, directory)
    if recipe.method.stage == "reward":
        score_once(config, pad_id)
    attention, reason = choose_attention(recipe.model, config, device.attention)
    tokenizer = Tokenizer.load(directory, recipe.model.new_tokens)
    # The seed decides random weights and adapters, alike on every rank.
    torch.manual_seed(recipe.seed)
    model = load_model(
        recipe.model, recipe.method.stage, directory, config,
        precision=precision, attention=attention, vocabulary=tokenizer.vocab_size, seed=recipe.seed,
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
    recompute_activations(model, recipe.memory)
    objective: Any = make_objective(model, recipe, plain_head=False, mean_over_ranks=strategy.mean)
    strategy.place(objective, precision)
    if plain_head := strategy.ask(objective, lambda: _look_at_head(model, recipe, strategy, precision)):
        objective.plain_head = True
    packed = strategy.ask(objective, lambda: _packs(model, recipe, strategy, precision, attention))
    # Dropout differs between ranks from here on.
    torch.manual_seed(recipe.seed + strategy.rank)
    return Trainee(
        model, tuned, config, tokenizer, precision, {"name": attention, "reason": reason}, kernels, export_dtype,
        objective, plain_head, packed,
    )  # fmt: skip


def _look_at_head(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision) -> bool:
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    with precision.autocast():
        if recipe.method.stage == "reward":
            guard.require_one_score(model, device, vocabulary)
            return False
        return guard.head_is_plain(model, device, vocabulary)


def _packs(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision, attention: str) -> bool:
    """Whether documents share sequences; proven to be safe where they do."""
    if recipe.data.packing is False:
        return False
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    try:
        with precision.autocast():
            guard.prove_isolation(model, device, vocabulary, attention=attention, compute=precision.compute)
    except RecipeError as error:
        if recipe.data.packing is True:
            raise
        if strategy.is_main:
            warn(f"data.packing: auto pads: {error.what}")
        return False
    return True


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
