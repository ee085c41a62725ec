"""A transformers model: loaded with its dtype, attention and new tokens, tuned, with recomputation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import AscendtuneError, RecipeError
from ascendtune.core.foreign_json import first_line
from ascendtune.core.log import warn
from ascendtune.core.units import count_of
from ascendtune.hub.loaded_weights import (
    HEADS,
    prediction_weights,
    require_all_weights,
    resize_embeddings,
    without_own_implementations,
)
from ascendtune.hub.model_config import read_model_config, unknown_name_fault
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.sections import MemorySection, ModelSection
from ascendtune.train.deferred_weights import DeferredWeights, may_defer, nothing_deferred
from ascendtune.train.new_layers import expand_layers, expanded_config
from ascendtune.train.precision import DTYPES, Precision
from ascendtune.train.tuner.freeze import tune_layers
from ascendtune.train.tuner.frozen_adapters import Compute, compute_here
from ascendtune.train.tuner.lora import add_adapter
from ascendtune.train.tuner.oft import add_rotations
from ascendtune.train.tuner.quantised_linear import quantised_numbers
from ascendtune.train.unread_tensor import UnreadWeights


def read_config(section: ModelSection, directory: Path) -> Any:
    """The model's config.

    Raises:
        RecipeError: transformers does not know the architecture, or it needs code that is not trusted.
    """
    from transformers import AutoConfig

    read_model_config(directory / "config.json")
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=section.trust_remote_code)
    except Exception as error:  # transformers raises various classes for invalid values
        remedy = "upgrade transformers, or check config.json"
        if "trust_remote_code" in str(error):
            remedy = "read the model's Python files, then set model.trust_remote_code: true"
        elif section.trust_remote_code and ".py" in str(error):
            remedy = "copy the model's Python files into the folder from the source of the model"
        elif type(error).__name__.startswith("StrictDataclass"):
            remedy = "correct this field of config.json, or copy the file again from the source of the model"
        raise RecipeError(
            f"the model cannot be read: {first_line(error)}", code="model-not-loadable", remedy=remedy, where=directory
        ) from error
    config = without_own_implementations(config)
    return expanded_config(config, section.new_layers) if section.new_layers else config


def set_single_score(config: Any, pad_id: int) -> None:
    """Turn `config` into that of a reward model: one score, at the last token that is not padding."""
    config.num_labels = 1
    config.get_text_config().pad_token_id = pad_id


@dataclass(frozen=True)
class ModelToLoad:
    """A causal language model (a model with one score, for stage reward), as it is needed.

    Attributes:
        config: of `read_config`.
        implementation: attention implementation, by a name that transformers knows.
        vocabulary: number of the tokenizer's tokens; embeddings with fewer rows are enlarged.
        seed: for `init: random`, and for a score head that is not in the files.
    """

    section: ModelSection
    stage: str
    directory: Path
    config: Any
    precision: Precision
    implementation: str
    vocabulary: int
    seed: int

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return DTYPES[self.precision.weights]


def load_model(wanted: ModelToLoad) -> Any:
    """The model on the CPU, in training mode.

    Raises:
        RecipeError: weights are missing or do not fit the architecture.
    """
    section, config = wanted.section, wanted.config
    # For random weights, and for a score head that is not in the files.
    torch.manual_seed(wanted.seed)
    with _loading(wanted.directory):
        if section.init == "random":
            model = auto_class(wanted.stage).from_config(
                config, dtype=wanted.dtype, attn_implementation=wanted.implementation,
                trust_remote_code=section.trust_remote_code,
            )  # fmt: skip
        else:
            model = _load_weights(wanted)
            if section.new_layers:
                model = expand_layers(model, config)
    grow_embeddings(model, wanted.vocabulary)
    model.train()
    return model


def load_in_parts(wanted: ModelToLoad, *, stays: bool) -> tuple[Any, Callable[[torch.nn.Module], None]]:
    """The model of `load_model`, and the function that reads those weights of a part that are still in their files.

    Args:
        stays: as `Strategy.keeps_host_weights`.
    """
    if not stays or wanted.section.quantization is not None:
        deferred = load_deferred(wanted, copied=stays)
        if deferred is not None:
            model, weights = deferred
            return model, weights.fill
    return load_model(wanted), nothing_deferred


def load_deferred(wanted: ModelToLoad, *, copied: bool) -> tuple[Any, DeferredWeights] | None:
    """Same as `load_model`, with the weights still in their files; None for a model that must be loaded as a whole.

    Args:
        copied: as in `DeferredWeights`.

    Raises:
        RecipeError: the files are damaged, or do not fit the architecture.
    """
    if not may_defer(wanted.section) or getattr(wanted.config, "quantization_config", None) is not None:
        return None
    weights = UnreadWeights(wanted.directory)
    torch.manual_seed(wanted.seed)
    try:
        with _loading(wanted.directory), weights.in_place_of_files():
            model = _load_weights(wanted)
    except RecipeError:
        if weights.values_needed:
            return None
        raise
    grow_embeddings(model, wanted.vocabulary)
    if weights.values_needed:
        return None
    model.train()
    return model, DeferredWeights(model, weights, copied=copied)


@contextmanager
def _loading(directory: Path) -> Iterator[None]:
    """Silence transformers' logging, and translate its errors about the model in `directory`."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    # Its report of keys is for programmers, and lists the score head, which training adds, as missing.
    logging.set_verbosity_error()
    try:
        yield
    except AscendtuneError:
        raise
    except Exception as error:  # transformers raises various classes for invalid values
        raise _unusable(error, directory) from error
    finally:
        logging.set_verbosity(verbosity)


def auto_class(stage: str) -> Any:
    """The auto class for the models of a stage."""
    # Separate imports: each one delays the first step.
    if stage == "reward":
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def _config_of_files(wanted: ModelToLoad) -> Any:
    """The config without the layers that the recipe adds: they are not in the files."""
    if not wanted.section.new_layers:
        return wanted.config
    stored = read_config(wanted.section.model_copy(update={"new_layers": 0}), wanted.directory)
    stored.num_labels = wanted.config.num_labels
    stored.get_text_config().pad_token_id = wanted.config.get_text_config().pad_token_id
    return stored


def _load_weights(wanted: ModelToLoad) -> Any:
    config = _config_of_files(wanted)
    model, report = auto_class(wanted.stage).from_pretrained(
        wanted.directory,
        config=config,
        dtype=wanted.dtype,
        attn_implementation=wanted.implementation,
        trust_remote_code=wanted.section.trust_remote_code,
        use_safetensors=True,
        output_loading_info=True,
        # Mismatches are reported as an error, with names and shapes, by `require_all_weights` below.
        ignore_mismatched_sizes=True,
    )
    scores = wanted.stage == "reward"
    require_all_weights(
        report,
        wanted.directory,
        config,
        drawn=("score.weight",) if scores else (),
        left_out=HEADS if scores else (),
    )
    if further := prediction_weights(report, config):
        warn(
            f"{count_of(len(further), 'weight')} of layers for multi-token prediction (MTP) are not loaded: they are "
            "neither trained nor exported"
        )
    return model


def _unusable(error: Exception, directory: Path) -> RecipeError:
    if fault := unknown_name_fault(directory / "config.json", error):
        return fault
    if isinstance(error, ImportError):
        return RecipeError(
            f"the model's own code cannot run: {first_line(error)}",
            code="model-code-broken",
            remedy="install the package that it names, or the version of transformers that this code was written for",
            where=directory,
        )
    return RecipeError(
        f"the weights cannot be loaded: {first_line(error)}",
        code="model-not-loadable",
        remedy="check that the folder contains all safetensors files that belong to this config.json",
        where=directory,
    )


def grow_embeddings(model: Any, vocabulary: int) -> int:
    """Add rows for new tokens, each the mean of the old rows, and return their number. Never removes rows."""
    rows: int = model.get_input_embeddings().weight.shape[0]
    if vocabulary <= rows:
        return 0
    old = [dict(table.named_parameters(recurse=False)) for table in _tables(model)]
    # Resized without content, as the weights may still be in their files: the new rows are computed from the old ones.
    weights = {weight for table in old for weight in table.values()}
    _replace(model, {each: torch.nn.Parameter(_on_meta(each), each.requires_grad) for each in weights})
    resize_embeddings(model, vocabulary)
    grown: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for table, before in zip(_tables(model), old, strict=True):
        for name, resized in table.named_parameters(recurse=False):
            if resized not in grown:
                grown[resized] = _with_more_rows(before[name], vocabulary)
    _replace(model, grown)
    return vocabulary - rows


def _tables(model: Any) -> list[torch.nn.Module]:
    """The token embeddings, and the head if there is one."""
    return [each for each in (model.get_input_embeddings(), model.get_output_embeddings()) if each is not None]


def _on_meta(weight: torch.Tensor) -> torch.Tensor:
    return torch.empty(weight.shape, dtype=weight.dtype, device="meta")


def _with_more_rows(table: torch.nn.Parameter, rows: int) -> torch.nn.Parameter:
    """`table`, (old rows, …), with `rows` rows; the new ones are the mean of the old ones."""
    with torch.no_grad():
        mean = table.float().mean(0).to(table.dtype)
        more = mean.expand(rows - len(table), *table.shape[1:])
        return torch.nn.Parameter(torch.cat([table, more]), table.requires_grad)


def _replace(model: torch.nn.Module, parameters: Mapping[torch.nn.Parameter, torch.nn.Parameter]) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter in parameters:
                module.register_parameter(name, parameters[parameter])


def apply_tuner(
    model: Any, section: MethodSection, adapters: Sequence[Path] = (), compute: Compute = compute_here
) -> Any:
    """Freeze or wrap `model` as the method says, and return the model to save at the end (the model or a PeftModel).

    Args:
        adapters: directories of the adapters in `start_from` of method.lora or method.oft.
        compute: computes an adapter's initial weights.
    """
    if section.tuner == "lora":
        return add_adapter(model, section, adapters, compute)
    if section.tuner == "oft":
        return add_rotations(model, section, adapters)
    return tune_layers(model, section) if section.tuner == "freeze" else model.requires_grad_(True)


def trainable_share(model: Any) -> tuple[int, int]:
    """Number of trainable parameters, and of all; tied ones are counted once."""
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    every = sum(count for count, _ in counts) + quantised_numbers(model)
    return sum(count for count, trains in counts if trains), every


def recompute_activations(model: Any, section: MemorySection) -> None:
    """Enable activation checkpointing, one checkpoint per layer, if the recipe asks for it."""
    if not section.gradient_checkpointing:
        return
    if not getattr(model, "supports_gradient_checkpointing", False):
        warn("memory.gradient_checkpointing has no effect: this model does not support it")
        return
    # transformers renamed the method; the old name still works, with a warning.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
