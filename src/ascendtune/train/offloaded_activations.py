"""`memory.offload_activations`: tensors saved for the backward pass, except weights, are moved to host memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributed.tensor import DTensor

from ascendtune.core.log import warn
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.sections import MemorySection


def activation_store(
    section: MemorySection, device: Device, module: nn.Module
) -> Callable[[], AbstractContextManager[Any]]:
    """A factory of contexts for the forward pass of `module`, with offloading hooks if the recipe asks for it."""
    if not section.offload_activations:
        return nullcontext
    if device.shares_host_memory:
        warn(f"memory.offload_activations has no effect on {device.kind}: activations are in host memory already")
        return nullcontext
    on_host = save_on_cpu(pin_memory=True, device_type=device.kind)
    return lambda: saving_all_but_weights(module, on_host.pack_hook, on_host.unpack_hook)


def saving_all_but_weights(
    module: nn.Module, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]
) -> saved_tensors_hooks:
    """Hooks that call `pack` for each tensor that autograd saves, unless it shares memory with a weight of `module`.

    A product saves its matrix: torch's `save_on_cpu` would copy every weight to the host and back in each pass. Casts
    of autocast are treated like other tensors.
    """
    local_tensors = (each for each in (*module.parameters(), *module.buffers()) if not isinstance(each, DTensor))
    weights = {each.untyped_storage()._cdata for each in local_tensors}

    def pack_others(tensor: torch.Tensor) -> Any:
        owner = tensor if tensor._base is None else tensor._base
        # FSDP frees a gathered parameter, which is not in `weights`, after its block, and gathers it again.
        is_weight = isinstance(owner, nn.Parameter) or tensor.untyped_storage()._cdata in weights
        return tensor if is_weight else (pack(tensor),)

    def unpack_others(saved: Any) -> torch.Tensor:
        return saved if isinstance(saved, torch.Tensor) else unpack(*saved)

    return saved_tensors_hooks(pack_others, unpack_others)
