"""A place in a model where a fused operator can stand."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any

import torch
from torch import nn

Kernel = Callable[..., Any]


class Place(ABC):
    """A module whose forward has a known form."""

    multiplies = False
    """Whether its matrix products are made in the type of autocast, though its inputs and outputs may have another."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Equal for places where one operator does exactly the same."""

    @abstractmethod
    def forward_with(self, kernel: Kernel) -> Callable[..., Any]:
        """The forward of the module, with `kernel` in it; its first argument is the module."""

    @abstractmethod
    def samples(self, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        """Arguments of `run`; gradients of those that require one are compared."""

    @abstractmethod
    def run(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What comes out as the module is, its own or swapped."""

    def swap(self, kernel: Kernel) -> None:
        # In the instance, not the class: other models in this process have the same class. A method, so that a copy of
        # the module calls it with the copy.
        self.module.forward = MethodType(self.forward_with(kernel), self.module)

    def restore(self) -> None:
        self.module.__dict__.pop("forward", None)


def takes_one_argument(module: nn.Module) -> bool:
    """Whether the forward is a function of one tensor: further arguments (a gate) mean a form that we do not know."""
    return len(inspect.signature(type(module).forward).parameters) == 2


def draw(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random numbers from a generator of its own: a test must not move the state that training starts from."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)
