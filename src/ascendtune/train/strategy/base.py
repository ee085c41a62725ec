"""What the loop asks of a strategy; on one device all answers are trivial."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from ascendtune.machine.device import Device


class Strategy:
    """One device. `ddp` and others override what differs."""

    name = "single"

    def __init__(self, device: Device) -> None:
        self.device = device
        self.rank = 0
        self.world_size = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The module to call in training: `objective` plus whatever keeps the ranks' gradients equal."""
        return objective

    def without_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Context for all but the last micro-batch of a step."""
        return nullcontext()

    def sum(self, values: list[torch.Tensor | float]) -> list[float]:
        """Sums over ranks of some scalars, as host numbers: the one synchronisation of a logged step."""
        return stack(values, self.device).tolist()

    def barrier(self) -> None:
        """Wait for all ranks."""

    def gradient_scale(self) -> float:
        """What a summed loss is multiplied with so that gradients come out summed over ranks."""
        return 1.0

    def close(self) -> None:
        """Leave the process group."""


def stack(values: list[torch.Tensor | float], device: Device) -> torch.Tensor:
    """(values,) on the device: scalars that are there already, and numbers of the host, copied once."""
    # fp64 on the way to the host, where the device has it: sums of many losses keep fp32's last digit.
    dtype = torch.float64 if device.supports_fp64 else torch.float32
    numbers = torch.tensor([each for each in values if not isinstance(each, torch.Tensor)], dtype=dtype)
    copied = iter(numbers.to(device.torch_device).unbind())
    return torch.stack([each.detach().to(dtype) if isinstance(each, torch.Tensor) else next(copied) for each in values])
