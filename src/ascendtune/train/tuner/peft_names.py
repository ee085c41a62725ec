"""Converts names of targets for PEFT and from PEFT.

In a LoRA adapter's config PEFT reads some names as those of models before transformers 5: on most mixtures `down_proj`
means the experts, wherever it is, and rank and alpha of `gate_up_proj` are doubled. So new adapters are created with
this conversion switched off. An exported config lists the weight of such a module as a parameter, whose name PEFT reads
literally: PEFT then computes the same from the same tensors. It reads names of other tuners' adapters literally.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.log import warn
from ascendtune.core.replaced import replaced
from ascendtune.core.units import count_of
from ascendtune.hub.adapter_files import PREFIX
from ascendtune.train.attention.proof import layer_pattern
from ascendtune.train.tuner.frozen_adapters import TRAINED
from ascendtune.train.tuner.targets import linear_modules

_WEIGHT = ".weight"


def literal_names() -> AbstractContextManager[None]:
    """Context in which PEFT creates adapters on the modules with exactly these names."""
    from peft.utils import transformers_weight_conversion as conversion

    return replaced(conversion, convert_peft_config_for_transformers=lambda *arguments, **named: None)


def misread_names(config: Any, model: Any) -> set[str]:
    """Those of `target_modules` that PEFT would read as the names of something else in `model`."""
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    misread = set()
    for name in config.target_modules:
        single = replace(config, target_modules={name}, target_parameters=None, rank_pattern={}, alpha_pattern={})
        try:
            convert_peft_config_for_transformers(single, model, None)
        except ValueError:
            # PEFT accepts this name only together with another one.
            misread.add(name)
            continue
        if single.target_modules != {name}:
            misread.add(name)
    return misread


def read_config(directory: Path, model: Any) -> Any:
    """The LoraConfig in `directory` as PEFT reads it, for `literal_names`: linear modules are listed as modules."""
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    config = LoraConfig.from_pretrained(directory)
    convert_peft_config_for_transformers(config, model, None)
    linear = set(linear_modules(model))
    paths = [path for path, _ in model.named_parameters()]
    modules, parameters = set(), []
    for name in config.target_parameters or ():
        matches = [path for path in paths if f".{path}".endswith(f".{name}")]
        if matches and all(path.removesuffix(_WEIGHT) in linear for path in matches):
            modules.add(name.removesuffix(_WEIGHT))
        else:
            parameters.append(name)
    if modules:
        config.target_modules = {*(config.target_modules or ()), *modules}
    config.target_parameters = sorted(parameters) or None
    return config


def write_for_peft(tuned: Any, directory: Path) -> None:
    """Rewrite the files that PEFT saved in `directory`, so that PEFT loads the same matrices onto the same modules."""
    if tuned.peft_config[TRAINED].peft_type == "LORA":
        _write_config(tuned, directory)
        _write_tensors(tuned, directory)


def _write_config(tuned: Any, directory: Path) -> None:
    from peft import LoraConfig

    config = LoraConfig.from_pretrained(directory)
    if not isinstance(config.target_modules, str) and (misread := misread_names(config, tuned.get_base_model())):
        weights = {f"{name}{_WEIGHT}" for name in misread}
        config.target_parameters = sorted({*(config.target_parameters or ()), *weights})
        config.target_modules = set(config.target_modules) - misread
        # Dropout matters only in training, which has ended, and PEFT refuses it for parameters.
        config.lora_dropout = 0.0
        config.save_pretrained(directory)


def unreadable_modules(tuned: Any) -> list[str]:
    """Modules whose adapter PEFT reads under another name: the first of each kind, as names in the model."""
    from peft import get_peft_model_state_dict
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    if get_checkpoint_conversion_mapping(tuned.config.model_type) is None:
        return []
    tensors = get_peft_model_state_dict(tuned, adapter_name=TRAINED, save_embedding_layers=False)
    kinds = {layer_pattern(name): name for name in sorted(tensors, reverse=True) if ".lora_" in name}
    with torch.device("cpu"):
        _, lost = _as_peft_reads(tuned, {name: _with_content(tensors[name]) for name in kinds.values()})
    return sorted({name.removeprefix(PREFIX).partition(".lora_")[0] for name in lost})


def _with_content(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself; for one on the meta device (a planned run), numbers of its shape on the host."""
    if not tensor.is_meta:
        return tensor
    return torch.arange(tensor.numel(), dtype=torch.float32, device="cpu").view(tensor.shape)


def _write_tensors(tuned: Any, directory: Path) -> None:
    """Write tensors that PEFT converts when it loads them in the form of the base's files."""
    from safetensors.torch import load_file, save_file

    file = directory / "adapter_model.safetensors"
    tensors = load_file(file)
    written, lost = _as_peft_reads(tuned, tensors)
    if written.keys() != tensors.keys():
        save_file(written, file, metadata={"format": "pt"})
    if lost:
        warn(
            f"PEFT loads {count_of(len(lost), 'weight')} of this adapter differently, first "
            f"{lost[0].removeprefix(PREFIX)}: use `ascendtune merge`"
        )


def _as_peft_reads(tuned: Any, tensors: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The tensors to write so that PEFT reads `tensors`, and names of those for which this is impossible."""
    from peft.utils.transformers_weight_conversion import convert_peft_adapter_state_dict_for_transformers
    from transformers.core_model_loading import revert_weight_conversion

    config = tuned.peft_config[TRAINED]

    def is_read_as(written: dict[str, Any], name: str) -> bool:
        read = convert_peft_adapter_state_dict_for_transformers(tuned, config, written, TRAINED)
        return _is_among(read, name, tensors[name])

    changed: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if ".lora_" not in name or is_read_as({name: tensor}, name):
            continue
        inner = name.removeprefix(PREFIX)
        in_files = revert_weight_conversion(tuned.get_base_model(), {inner: tensor.clone()})
        written = {f"{PREFIX}{key}": value.contiguous() for key, value in in_files.items()}
        if is_read_as(written, name):
            changed[name] = written
    result = {name: tensor for name, tensor in tensors.items() if name not in changed}
    for written in changed.values():
        result |= written
    # All at once, as PEFT reads them: some are made from several.
    read = convert_peft_adapter_state_dict_for_transformers(tuned, config, dict(result), TRAINED)
    lost = [name for name in tensors if ".lora_" in name and not _is_among(read, name, tensors[name])]
    return result, lost


def _is_among(read: dict[str, Any], name: str, tensor: Any) -> bool:
    return name in read and torch.equal(read[name], tensor)
