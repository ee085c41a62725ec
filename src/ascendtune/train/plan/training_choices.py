"""The choices of training for a recipe on a device, before any weight is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import errors_as_ours
from ascendtune.hub.model_config import unknown_name_fault
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.attention.choice import AttentionChoice, choose_attention
from ascendtune.train.attention.model_type import require_rows_alone
from ascendtune.train.attention.small_copy import small_configs
from ascendtune.train.model import auto_class, read_config, set_single_score
from ascendtune.train.model_checks import fusible_head
from ascendtune.train.model_setup import may_isolate
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.plan.modelled_kernels import modelled_attention
from ascendtune.train.precision import DTYPES, Precision, choose_precision
from ascendtune.train.strategy.choose import resolve_auto

_MODELLED = {"varlen": 1, "npu_fusion": 16}
"""Attention of accelerators -> number of fp32 numbers that it keeps per head and token."""


@dataclass(frozen=True)
class TrainingChoices:
    """The choices of training for this recipe on this device."""

    recipe: Recipe
    directory: Path
    device: Device
    ranks: int
    shards: int
    """Number of ranks that shard one copy of the model, if the strategy is fsdp."""
    config: Any
    precision: Precision
    attention: AttentionChoice
    head_form: HeadForm | None
    strategy: str
    reason: str
    padding_free: bool
    """Whether the rows of a micro-batch are concatenated; otherwise they are padded."""
    vocabulary: int
    pad_id: int
    adapters: tuple[Path, ...] = ()
    """Directories of the adapters to start from."""

    def implementation(self) -> str:
        """The value of transformers' `attn_implementation`; for an accelerator's attention, a model of it."""
        numbers = _MODELLED.get(self.attention.name)
        if numbers is None:
            return self.attention.implementation()
        from transformers import AttentionInterface

        name = f"ascendtune_modelled_{self.attention.name}"
        pads_values = self.attention.name == "varlen"
        AttentionInterface.register(name, modelled_attention(numbers, pads_values=pads_values))
        return name

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        directory: Path,
        device: Device,
        *,
        ranks: int,
        vocabulary: int,
        pad_id: int,
        nodes: int = 1,
        adapters: Sequence[Path] = (),
    ) -> TrainingChoices:
        """Resolve every `auto`.

        Raises:
            AscendtuneError: training would refuse this recipe.
        """
        stage, model = recipe.method.stage, recipe.model.model_dump_json()
        precision = choose_precision(recipe, device)
        config, attention, head_form = _of_model(model, stage, directory, device.attention, precision, pad_id)
        if not attention.support.padded:
            require_rows_alone(recipe, str(attention.support.why_padded))
        pads = recipe.pads_always or recipe.has_rows_alone
        section, reason = recipe.parallel, "as asked"
        if section.strategy == "auto":
            section, reason = resolve_auto(recipe, device, directory, ranks=ranks, nodes=nodes)
        recipe = recipe.model_copy(update={"parallel": section})
        shards = section.fsdp.shards(ranks=ranks, nodes=nodes) if section.strategy == "fsdp" else ranks
        name = "single" if section.strategy == "ddp" and ranks == 1 else section.strategy
        return cls(
            recipe, directory, device, ranks, shards, config, precision, attention, head_form, name, reason,
            not pads and may_isolate(recipe, attention, is_main=False), vocabulary, pad_id,
            tuple(adapters),
        )  # fmt: skip


@cache
def _of_model(
    model: str, stage: str, directory: Path, attention: str, precision: Precision, pad_id: int
) -> tuple[Any, AttentionChoice, HeadForm | None]:
    """Config, attention and form of the head; the same for all recipes with the section `model`, given as JSON."""
    section = ModelSection.model_validate_json(model)
    config = read_config(section, directory)
    if stage == "reward":
        set_single_score(config, pad_id)
    with errors_as_ours(partial(unknown_name_fault, directory / "config.json")):
        choice = choose_attention(section, stage, config, attention)
        return config, choice, None if stage == "reward" else _head_form(section, stage, config, precision)


def _head_form(section: ModelSection, stage: str, config: Any, precision: Precision) -> HeadForm | None:
    """The form of the model's head, as training determines it, but from a small copy in the same dtypes."""

    def make(small: Any) -> Any:
        return auto_class(stage).from_config(
            small, dtype=DTYPES[precision.weights], attn_implementation="eager",
            trust_remote_code=section.trust_remote_code,
        )  # fmt: skip

    with torch.random.fork_rng(devices=[]), precision.autocast():
        torch.manual_seed(0)
        model = make(next(iter(small_configs(config, make)))).eval()
        return fusible_head(model, torch.device("cpu"), model.get_input_embeddings().weight.shape[0])
