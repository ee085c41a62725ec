"""Weights that stay in their files until the part of the model that they belong to is divided among the ranks.

Until then a parameter is one number that stands for all of its own (stride 0): it has shape, type and device, and no
memory. Filled and divided block by block, a model never takes more of a rank's memory than its share and one block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from ascendtune.core.replaced import replaced
from ascendtune.hub.safetensors_header import FLOAT_DTYPES
from ascendtune.hub.weight_files import all_tensors, read_weight_headers
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.sections import ModelSection


class DeferredWeights:
    """The parameters of one model whose weights have not been read yet.

    Args:
        places: parameter -> (file, name of its tensor in that file).
        stay_whole: what is read is not divided, so it must not stay mapped from files, which may be replaced.
    """

    def __init__(self, places: dict[nn.Parameter, tuple[Path, str]], *, stay_whole: bool) -> None:
        self._places, self._stay_whole = places, stay_whole

    def fill(self, module: nn.Module) -> None:
        """Read the weights of `module` and of all modules in it, unless they have been read before."""
        by_file: dict[Path, list[tuple[nn.Parameter, str]]] = defaultdict(list)
        for parameter in module.parameters():
            # A reference that stays here would keep the undivided weight alive.
            if (place := self._places.pop(parameter, None)) is not None:
                by_file[place[0]].append((parameter, place[1]))
        for path, wanted in by_file.items():
            with safe_open(path, framework="pt") as file:
                for parameter, name in wanted:
                    weight = file.get_tensor(name)
                    parameter.data = _in_own_pages(weight.clone() if self._stay_whole else weight, parameter.dtype)


def _in_own_pages(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`weight`, any shape, in `dtype`, in memory that goes back to the system when the tensor goes.

    In the heap, what stays after a block would lie between what is given back, and hold it.
    """
    if weight.dtype == dtype or not weight.numel():
        return weight.to(dtype)
    pages = mmap(-1, weight.numel() * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=weight.numel()).view(weight.shape).copy_(weight)


def nothing_deferred(module: nn.Module) -> None:
    """The weights of `module` are in memory already."""


def can_defer(section: MethodSection) -> bool:
    """Whether the tuner of `section` makes do with the shapes of the weights."""
    takes_values = bool(section.start_from)
    if section.adapter is not None:
        takes_values |= bool(section.adapter.modules_to_save)
    if section.tuner == "lora":
        takes_values |= section.lora.dora or section.lora.init == "pissa"
    # The score of a reward model is drawn, and not in the files.
    return section.stage != "reward" and not takes_values


def may_defer(section: ModelSection, method: MethodSection) -> bool:
    """Whether weights can stay in their files until they are divided, as far as the recipe says."""
    return section.init != "random" and not section.trust_remote_code and not section.new_layers and can_defer(method)


def deferred_model(
    kind: Any, directory: Path, config: Any, *,
    dtype: torch.dtype, implementation: str, vocabulary: int, stay_whole: bool = False,
) -> tuple[Any, DeferredWeights] | None:  # fmt: skip
    """A model of transformers without weights, and where these are; None where loading is more than copying.

    Each parameter must be in the files under its own name and with its own shape, and nothing else may be.

    Args:
        kind: an auto class.
        implementation: of attention.
        vocabulary: tokens of the tokenizer, for which the embeddings must have rows.
        stay_whole: as in `DeferredWeights`.
    """
    if getattr(config, "quantization_config", None) is not None:
        return None
    # Making a model notes its type in the config, which still says of what type the files are.
    config = deepcopy(config)
    config.name_or_path = str(directory)
    with _without_memory():
        model = kind.from_config(config, dtype=dtype, attn_implementation=implementation)
    _compute_buffers(model)
    model.tie_weights()
    if model.get_input_embeddings().weight.shape[0] < vocabulary or _converts(model) or _empties_padding(model):
        return None
    headers = read_weight_headers(directory)
    stored = all_tensors(headers)
    files = {name: directory / file for file, header in headers.items() for name in header.tensors}
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    places = {}
    for parameter, own in names.items():
        found = [name for name in own if name in stored]
        if len(found) != 1 or stored[found[0]].shape != tuple(parameter.shape):
            return None
        if stored[found[0]].dtype not in FLOAT_DTYPES or parameter.dtype != dtype:
            return None
        places[parameter] = files[found[0]], found[0]
    is_whole = len(places) == len(stored) and model.state_dict().keys() == {
        each for own in names.values() for each in own
    }
    if not is_whole:
        return None
    for parameter in names:
        stand_in = torch.zeros((), dtype=dtype).expand(parameter.shape)
        # The same object, so that tied weights stay tied.
        torch.utils.swap_tensors(parameter, nn.Parameter(stand_in, parameter.requires_grad))
    _read_generation_config(model, directory)
    return model, DeferredWeights(places, stay_whole=stay_whole)


@contextmanager
def _without_memory() -> Iterator[None]:
    """Parameters of modules that are made in this context are on the meta device; buffers are computed as always."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    with replaced(nn.Module, register_parameter=on_meta):
        yield


def _compute_buffers(model: Any) -> None:
    """Compute the buffers of `model` again, whose weights are on the meta device, as `from_pretrained` does.

    They were made while torch's default type was that of the weights, which GPT-J's positions in bf16 do not survive.
    """
    for module in model.modules():
        module._is_hf_initialized = False
    model.initialize_weights()


def _converts(model: Any) -> bool:
    """Whether transformers computes weights of this model from those in the files."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    return any(isinstance(each, WeightConverter) for each in get_model_conversion_mapping(model))


def _empties_padding(model: Any) -> bool:
    """Whether the class sets the padding token's embedding to 0 whenever weights are loaded, as Youtu's does."""
    table = nn.Embedding(2, 1, padding_idx=0)
    nn.init.ones_(table.weight)
    # As `from_pretrained` marks what it has read; classes should leave that alone.
    table.weight._is_hf_initialized = True  # type: ignore[attr-defined]
    with torch.no_grad():
        model._init_weights(table)
    return not bool(table.weight.all())


def _read_generation_config(model: Any, directory: Path) -> None:
    """As `from_pretrained` does: it is exported with the model."""
    from transformers import GenerationConfig

    if model.can_generate():
        with suppress(OSError):
            model.generation_config = GenerationConfig.from_pretrained(directory)
