"""The exported model: weights in Hugging Face format, complete or absent; and the disk space that they need."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ascendtune.core.directories import require_free_space
from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.files import appearing
from ascendtune.core.units import format_bytes
from ascendtune.data.stop_ids import add_stop_ids
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.hub.adapter_files import CONFIG, PREFIX, WEIGHTS, read_adapter_config
from ascendtune.recipe.deepspeed_config import silence_deepspeed
from ascendtune.train.tuner.frozen_adapters import TRAINED, bytes_of_sum, frozen_adapters, write_sum
from ascendtune.train.tuner.peft_names import write_for_peft


def export_model(tuned: Any, tokenizer: Tokenizer, directory: Path, chat_template: str, *, new_tokens: bool) -> None:
    """Write weights (safetensors), config, tokenizer and chat template to `directory`.

    Args:
        tuned: a transformers model, or a PeftModel, of which only the adapter is written (a sum as one adapter).
        chat_template: the Jinja template used in training; inference must use the same.
        new_tokens: the embeddings have been enlarged, so an adapter must include them.

    Raises:
        MachineError: the disk is full or not writable; an older model there is unchanged.
    """
    temporary = directory.with_name(f".{directory.name}.writing")
    with translated_disk_errors(directory, "writing the model"), appearing(directory, temporary, replace=True):
        needed = exported_bytes(tuned, new_tokens)
        what = f"the model needs {format_bytes(needed)}"
        require_free_space(directory.parent, needed, what, remedy="free space there")
        # Without this option PEFT requests the base model's vocabulary from the hub.
        adapted = hasattr(tuned, "peft_config")
        options = {"save_embedding_layers": new_tokens, "selected_adapters": [TRAINED]} if adapted else {}
        # Saving calls accelerate, which imports DeepSpeed if it is installed.
        silence_deepspeed()
        with _system_errors():
            tuned.save_pretrained(temporary, **options)
            if adapted:
                _write_tables_once(temporary)
                if new_tokens:
                    _write_all_tables(tuned, temporary)
                write_sum(tuned, temporary)
                write_for_peft(tuned, temporary)
                _sort_module_names(temporary / CONFIG)
        tokenizer.save(temporary, chat_template=chat_template)
        add_stop_ids(temporary)


@contextmanager
def _system_errors() -> Iterator[None]:
    """Convert safetensors' own errors with the system's error number in their text to OSError."""
    try:
        yield
    except SafetensorError as error:
        if (match := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1]))) from error


def exported_parameters(tuned: Any, new_tokens: bool) -> list[Any]:
    """The parameters that `export_model` writes: of a model all; of an adapter the trained ones and enlarged tables."""
    if not hasattr(tuned, "peft_config"):
        return list(tuned.parameters())
    tables = [tuned.get_input_embeddings(), tuned.get_output_embeddings()] if new_tokens else []
    table_parameters = [parameter for table in tables if table is not None for parameter in table.parameters()]
    return list(dict.fromkeys([*(each for each in tuned.parameters() if each.requires_grad), *table_parameters]))


def exported_bytes(tuned: Any, new_tokens: bool, dtype: torch.dtype | None = None) -> int:
    """Approximate size of the files that `export_model` writes for `tuned`.

    Args:
        dtype: of the exported weights; None if the weights have it already.
    """
    parameters = exported_parameters(tuned, new_tokens)
    added = 0
    if hasattr(tuned, "peft_config") and frozen_adapters(tuned):
        # They are exported as one adapter, whose rank is the sum of their ranks.
        lora_ids = {id(each) for name, each in tuned.named_parameters() if ".lora_" in name}
        parameters = [each for each in parameters if id(each) not in lora_ids]
        added = bytes_of_sum(tuned)
    written: int = sum(each.numel() * (dtype.itemsize if dtype else each.element_size()) for each in parameters)
    return added + written


def _write_tables_once(directory: Path) -> None:
    """Keep one of three copies of an enlarged and fully trained table: PEFT writes three and reads one."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    file = directory / WEIGHTS
    with safe_open(file, "pt") as opened:
        names = opened.keys()
    needless = [name for name in names if {"modules_to_save", "original_module"} & {*name.split(".")}]
    if needless:
        remaining = {name: tensor for name, tensor in load_file(file).items() if name not in needless}
        save_file(remaining, file, metadata={"format": "pt"})


def _write_all_tables(tuned: Any, directory: Path) -> None:
    """Add the other enlarged table if one table of embeddings has a LoRA: PEFT leaves it out then."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    file = directory / WEIGHTS
    with safe_open(file, "pt") as opened:
        written = set(opened.keys())
    tables = [tuned.get_input_embeddings(), tuned.get_output_embeddings()]
    modules = tuned.get_base_model().named_modules()
    tables_by_name = [(f"{PREFIX}{name}", module.weight) for name, module in modules if module in tables]
    written_ids = {
        id(weight) for name, weight in tables_by_name if written & {f"{name}.weight", f"{name}.base_layer.weight"}
    }
    if missing := {f"{name}.weight": weight for name, weight in tables_by_name if id(weight) not in written_ids}:
        tensors = {name: weight.detach().cpu().contiguous() for name, weight in missing.items()}
        save_file({**load_file(file), **tensors}, file, metadata={"format": "pt"})


def _sort_module_names(config: Path) -> None:
    """Sort the names: PEFT writes sets in the order of Python's hashes, which differs between processes, so equal runs
    would leave different files."""
    content = read_adapter_config(config)
    for key in ("target_modules", "exclude_modules"):
        if isinstance(content.get(key), list):
            content[key] = sorted(content[key])
    config.write_text(json.dumps(content, indent=2, sort_keys=True), encoding="utf-8")
