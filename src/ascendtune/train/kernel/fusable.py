"""Modules of a model whose forward has a known form, so that a fused operator can compute it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any

import torch
from torch import nn

Kernel = Callable[..., Any]


class FusableModule(ABC):
    """A module that can be computed with a fused operator."""

    multiplies_inside = False
    """Whether it has matrix products, which autocast computes in its own dtype, whatever that of inputs is."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    @property
    def key(self) -> Hashable:
        """Equal for modules in which an operator computes exactly the same."""
        shapes = tuple((name, tuple(each.shape), each.dtype) for name, each in self.module.named_parameters())
        return type(self.module), shapes

    @property
    def is_replaced(self) -> bool:
        return "forward" in self.module.__dict__

    @abstractmethod
    def forward_with(self, kernel: Kernel) -> Callable[..., Any]:
        """The forward of the module using `kernel`; its first argument is the module."""

    @abstractmethod
    def samples(self, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        """Random arguments of `run`, of any shape; the gradients of those that require one are compared."""

    @abstractmethod
    def run(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Outputs of the current forward, the module's own or the replaced one; any shape."""

    def replace_forward(self, kernel: Kernel) -> None:
        # Replaced in the instance, not the class, which other models in this process share. A bound method, so that
        # copying the module binds it to the copy.
        self.module.forward = MethodType(self.forward_with(kernel), self.module)

    def restore_forward(self) -> None:
        self.module.__dict__.pop("forward", None)


def takes_one_argument(module: nn.Module) -> bool:
    """Whether the forward is a function of one tensor: with further arguments (a gate) its form is unknown."""
    return len(inspect.signature(type(module).forward).parameters) == 2


def randn(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random numbers of `shape`, (…,), from a separate generator, which leaves training's random state unchanged."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)
