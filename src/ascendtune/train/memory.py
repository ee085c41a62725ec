"""Time for memory: activations that are computed again, or kept on the host, between forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd.graph import save_on_cpu

from ascendtune.core.log import warn
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.sections import MemorySection


def recompute_activations(model: Any, section: MemorySection) -> None:
    """Switch on activation checkpointing, one checkpoint per layer, where the recipe asks for it."""
    if not section.gradient_checkpointing:
        return
    if not getattr(model, "supports_gradient_checkpointing", False):
        warn("memory.gradient_checkpointing has no effect: this model does not support it")
        return
    # transformers renamed the method; the old name still works but complains.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def activation_store(section: MemorySection, device: Device) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context of a forward pass: what backward needs goes to host memory, where the recipe asks for it."""
    if not section.offload_activations:
        return nullcontext
    if device.shares_host_memory:
        warn(f"memory.offload_activations has no effect on {device.kind}: activations are in host memory already")
        return nullcontext
    return lambda: save_on_cpu(pin_memory=True, device_type=device.kind)
