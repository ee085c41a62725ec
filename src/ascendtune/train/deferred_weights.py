"""Weights that stay in their files until the part of the model to which they belong is sharded.

Until then a parameter is a single number expanded with stride 0: it has shape, dtype and device, and takes no memory.
The blocks are filled and sharded one by one, so a rank never stores more than its shard and one block.
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
    """The parameters of a model whose weights have not been read yet.

    Args:
        locations: parameter -> (file, name of its tensor in that file).
        unsharded: the weights are not sharded; they are copied, as a file that stays mapped may be replaced.
    """

    def __init__(self, locations: dict[nn.Parameter, tuple[Path, str]], *, unsharded: bool) -> None:
        self._locations, self._unsharded = locations, unsharded

    def fill(self, module: nn.Module) -> None:
        """Read the weights of `module` and its submodules that have not been read yet."""
        by_file: dict[Path, list[tuple[nn.Parameter, str]]] = defaultdict(list)
        for parameter in module.parameters():
            # A reference kept here would keep the full weight alive after sharding.
            if (location := self._locations.pop(parameter, None)) is not None:
                by_file[location[0]].append((parameter, location[1]))
        for path, entries in by_file.items():
            with safe_open(path, framework="pt") as file:
                for parameter, name in entries:
                    weight = file.get_tensor(name)
                    parameter.data = _in_own_pages(weight.clone() if self._unsharded else weight, parameter.dtype)


def _in_own_pages(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`weight`, any shape, in `dtype`, in memory pages that return to the system when the tensor is freed.

    On the heap, allocations that outlive a block would keep the freed memory around them in the process.
    """
    if weight.dtype == dtype or not weight.numel():
        return weight.to(dtype)
    pages = mmap(-1, weight.numel() * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=weight.numel()).view(weight.shape).copy_(weight)


def nothing_deferred(module: nn.Module) -> None:
    """Do nothing: the weights of `module` are in memory already."""


def can_defer(section: MethodSection) -> bool:
    """Whether the tuner of `section` needs only the shapes of the weights."""
    takes_values = bool(section.start_from)
    if section.adapter is not None:
        takes_values |= bool(section.adapter.modules_to_save)
    if section.tuner == "lora":
        takes_values |= section.lora.dora or section.lora.init == "pissa"
    # The score head of a reward model is initialised at random; it is not in the files.
    return section.stage != "reward" and not takes_values


def may_defer(section: ModelSection, method: MethodSection) -> bool:
    """Whether the recipe allows that weights stay in their files until they are sharded."""
    return section.init != "random" and not section.trust_remote_code and not section.new_layers and can_defer(method)


def deferred_model(
    kind: Any, directory: Path, config: Any, *,
    dtype: torch.dtype, implementation: str, vocabulary: int, unsharded: bool = False,
) -> tuple[Any, DeferredWeights] | None:  # fmt: skip
    """A transformers model without weights, and the files that have them; None if loading is more than copying.

    Each parameter must be in the files under its own name and shape, and the files must contain nothing else.

    Args:
        kind: an auto class.
        implementation: of attention.
        vocabulary: number of the tokenizer's tokens; the embeddings must have as many rows.
        unsharded: as in `DeferredWeights`.
    """
    if getattr(config, "quantization_config", None) is not None:
        return None
    # Constructing a model writes its dtype to the config, which must keep the dtype of the files.
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
    locations = {}
    for parameter, own_names in names.items():
        matches = [name for name in own_names if name in stored]
        if len(matches) != 1 or stored[matches[0]].shape != tuple(parameter.shape):
            return None
        if stored[matches[0]].dtype not in FLOAT_DTYPES or parameter.dtype != dtype:
            return None
        locations[parameter] = files[matches[0]], matches[0]
    is_whole = len(locations) == len(stored) and model.state_dict().keys() == {
        each for own_names in names.values() for each in own_names
    }
    if not is_whole:
        return None
    for parameter in names:
        stand_in = torch.zeros((), dtype=dtype).expand(parameter.shape)
        # The same object, so that tied weights stay tied.
        torch.utils.swap_tensors(parameter, nn.Parameter(stand_in, parameter.requires_grad))
    _read_generation_config(model, directory)
    return model, DeferredWeights(locations, unsharded=unsharded)


@contextmanager
def _without_memory() -> Iterator[None]:
    """Put parameters of modules constructed in this context on the meta device; buffers are computed as usual."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    with replaced(nn.Module, register_parameter=on_meta):
        yield


def _compute_buffers(model: Any) -> None:
    """Compute the buffers of `model`, whose weights are on the meta device, again, as `from_pretrained` does.

    They were computed while the weights' dtype was torch's default, and GPT-J's positions are wrong in bf16.
    """
    for module in model.modules():
        module._is_hf_initialized = False
    model.initialize_weights()


def _converts(model: Any) -> bool:
    """Whether transformers converts weights of this model after reading them."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    return any(isinstance(each, WeightConverter) for each in get_model_conversion_mapping(model))


def _empties_padding(model: Any) -> bool:
    """Whether loading weights sets the padding token's embedding to 0, as in Youtu's class."""
    table = nn.Embedding(2, 1, padding_idx=0)
    nn.init.ones_(table.weight)
    # The mark of weights that `from_pretrained` has read: initialisation should leave them alone.
    table.weight._is_hf_initialized = True  # type: ignore[attr-defined]
    with torch.no_grad():
        model._init_weights(table)
    return not bool(table.weight.all())


def _read_generation_config(model: Any, directory: Path) -> None:
    """Read the generation config as `from_pretrained` does: it is exported with the model."""
    from transformers import GenerationConfig

    if model.can_generate():
        with suppress(OSError):
            model.generation_config = GenerationConfig.from_pretrained(directory)
