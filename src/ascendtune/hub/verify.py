"""Checks that a directory contains a complete model in Hugging Face format, before torch is imported."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import shown_names, shown_value
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of
from ascendtune.hub.model_config import read_model_config, require_layers, text_config
from ascendtune.hub.safetensors_header import StoredTensor
from ascendtune.hub.weight_files import all_tensors, read_weight_headers

_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)


def check_model_directory(path: Path, *, weights_needed: bool) -> None:
    """Raise if a file is missing, damaged or invalid, or files do not match.

    Raises:
        RecipeError: with the file, the field and the remedy.
        MachineError: permission is denied, or the disk fails.
    """
    if path.suffix in (".yaml", ".yml"):
        raise RecipeError(
            "this is a recipe, and a model or a run is needed",
            code="not-a-directory",
            remedy="give the run that it trained: its run_dir or output_dir; `ascendtune runs list DIR` finds runs",
            where=path,
        )
    if not path.is_dir():
        raise RecipeError(
            "a model is a directory, this is a file",
            code="not-a-directory",
            remedy="give the directory that contains config.json",
            where=path,
        )
    config_path = path / "config.json"
    if not config_path.exists():
        raise RecipeError(
            "not a model: there is no config.json",
            code="model-config-missing",
            remedy=_weights_remedy(path),
            where=path,
        )
    config = read_model_config(config_path)
    if (path / "adapter_config.json").exists():
        raise RecipeError(
            "this directory contains a model and an adapter, which transformers would add to it silently",
            code="model-and-adapter",
            remedy="keep the adapter's files in a folder of their own",
            where=path,
        )
    if not has_vocabulary(path):
        raise RecipeError(
            "the model has no tokenizer",
            code="tokenizer-missing",
            remedy="copy tokenizer.json and tokenizer_config.json from the source of the model",
            where=path,
        )
    if weights_needed:
        tensors = all_tensors(read_weight_headers(path))
        _require_floats(path, config, tensors)
        require_layers(config_path, config, {name: tensor.shape for name, tensor in tensors.items()})


def has_vocabulary(directory: Path) -> bool:
    """Whether the directory has the vocabulary of a tokenizer; tokenizer_config.json does not suffice."""
    return any((directory / name).exists() for name in _TOKENIZERS) or any(directory.glob("*.tiktoken"))


def require_unquantised(path: Path, doing: str = "training on") -> None:
    """Raise if the weights are quantised; transformers would download kernels for some formats.

    Args:
        doing: the intended use of the weights, for the message.

    Raises:
        RecipeError: the weights are quantised, and that is not supported in this version.
    """
    config_path = path / "config.json"
    config = read_model_config(config_path)
    if quantisation := config.get("quantization_config") or text_config(config).get("quantization_config"):
        method = quantisation.get("quant_method", "some method") if isinstance(quantisation, dict) else quantisation
        hint = "; method.tuner: lora keeps it frozen" if "train" in doing else ""
        shown = method if isinstance(method, str) else shown_value(method)
        raise RecipeError(
            f"this model is quantised ({shown}), and {doing} quantised weights is not supported in this version",
            code="quantised-model",
            remedy=f"give the original in bf16 or fp16{hint}",
            where=config_path,
        )


def _require_floats(path: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise for weights that are integers, which loading would silently convert. Masks and positions do not count."""
    if "quantization_config" in config or "quantization_config" in text_config(config):
        return
    integers = [
        name
        for name, tensor in tensors.items()
        if tensor.dtype.startswith(("I", "U", "BOOL")) and (name.endswith((".weight", "_proj")) or name == "weight")
    ]
    if integers:
        raise RecipeError(
            f"{count_of(len(integers), 'weight is an integer', 'weights are integers')}, "
            f"first {shown_names(integers[:1])} ({tensors[integers[0]].dtype}); "
            "a model that is not quantised has floating-point weights",
            code="integer-weights",
            remedy="copy or download the model again; for a quantised one, give the original in bf16 or fp16",
            where=path,
        )


def _weights_remedy(path: Path) -> str:
    if any((place / "adapter_config.json").exists() for place in (path, RunDir(path).model)):
        merge = f"`ascendtune merge {shlex.quote(str(path))} --to merged`"
        return f"this is an adapter; give its base model, or {merge}, then give merged"
    inside = sorted([*path.glob("*/config.json"), *path.glob("snapshots/*/config.json")])
    return f"did you mean '{inside[0].parent}'?" if inside else "give a directory in Hugging Face format, or a hub id"
