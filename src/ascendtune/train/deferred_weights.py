"""Weights that stay in their files until the part of the model to which they belong is sharded.

Until then a parameter is a single number expanded with stride 0: it has shape, dtype and device, and takes no memory.
The blocks are filled and sharded one by one, so a rank never stores more than its shard and one block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ascendtune.recipe.sections import ModelSection
from ascendtune.train.unread_tensor import Read, UnreadTensor, UnreadWeights, in_own_pages


class DeferredWeights:
    """The parameters of a model whose weights have not been read yet.

    Args:
        model: loaded with unread tensors. Its parameters are replaced, and its buffers are read.
        copied: the weights stay where they are read; they are copied, as a file that stays mapped may be replaced.
    """

    def __init__(self, model: nn.Module, weights: UnreadWeights, *, copied: bool) -> None:
        self._weights, self._copied = weights, copied
        self._compute: dict[nn.Parameter, Callable[[Read], torch.Tensor]] = {}
        stand_ins: dict[UnreadTensor, nn.Parameter] = {}
        with weights.open() as read:
            for module in model.modules():
                for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                    if isinstance(parameter, UnreadTensor):
                        # The same object for each use, so that tied weights stay tied.
                        if parameter not in stand_ins:
                            stand_ins[parameter] = self._stand_in(parameter, parameter.compute)
                        module.register_parameter(name, stand_ins[parameter])
                for name, buffer in module.named_buffers(recurse=False):
                    if isinstance(buffer, UnreadTensor):
                        setattr(module, name, buffer.compute(read).clone())

    def fill(self, module: nn.Module) -> None:
        """Read the weights of `module` and its submodules that have not been read yet."""
        parameter: Any
        with self._weights.open() as read:
            for parameter in module.parameters():
                # A reference kept here would keep the full weight alive after sharding.
                if (compute := self._compute.pop(parameter, None)) is not None:
                    weight = compute(read)
                    if self._copied and weight.dtype == parameter.dtype:
                        weight = weight.clone()
                    parameter.data = in_own_pages(weight, parameter.dtype)
                    del parameter.__deepcopy__, parameter.deferred

    def _stand_in(self, weight: torch.Tensor, compute: Callable[[Read], torch.Tensor]) -> nn.Parameter:
        """A parameter with the shape and dtype of `weight`, whose content `compute` returns."""
        parameter: Any = nn.Parameter(_without_memory(weight.shape, weight.dtype), weight.requires_grad)
        self._compute[parameter] = compute
        # PEFT copies modules that it trains as a whole: the copies stay in the files, too.
        parameter.__deepcopy__ = lambda _memo: self._stand_in(parameter, compute)
        parameter.deferred = self
        result: nn.Parameter = parameter
        return result

    def set_content(self, parameter: Any) -> None:
        """Allocate memory for `parameter`, which gets its values from elsewhere."""
        del self._compute[parameter], parameter.__deepcopy__, parameter.deferred
        parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype)


def _without_memory(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros((), dtype=dtype).expand(shape)


def is_unread(parameter: torch.Tensor) -> bool:
    """Whether the values of `parameter`, any shape, are still in their file."""
    return hasattr(parameter, "deferred")


def cast(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Convert `parameter` to `dtype` in place; if it is unread, without memory for its values."""
    is_deferred = is_unread(parameter)
    parameter.data = _without_memory(parameter.shape, dtype) if is_deferred else parameter.data.to(dtype)


def make_room(parameter: nn.Parameter) -> None:
    """Allocate memory for `parameter` if it is unread: other values than those of the file are copied into it."""
    if (deferred := getattr(parameter, "deferred", None)) is not None:
        deferred.set_content(parameter)


def nothing_deferred(module: nn.Module) -> None:
    """Do nothing: the weights of `module` are in memory already."""


def move_in_parts(model: nn.Module, fill: Callable[[nn.Module], None], device: torch.device) -> None:
    """Move `model` to `device`, one module after the other, each when its weights have been read."""
    # A module follows the one that contains it.
    for module in reversed(list(model.modules())):
        fill(module)
        module._apply(lambda tensor: tensor.to(device), recurse=False)


def may_defer(section: ModelSection) -> bool:
    """Whether the weights of the model may stay in their files until they are sharded."""
    return section.init != "random" and not section.new_layers
