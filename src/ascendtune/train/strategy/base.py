"""What the loop asks of a strategy; on one device all answers are trivial."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from ascendtune.machine.torch_backend.device import Device
from ascendtune.train.checkpoint.content import CheckpointContent
from ascendtune.train.checkpoint.named_tensors import NamedTensors
from ascendtune.train.precision import Precision

MakeOptimizer = Callable[[], Optimizer]
Answer = TypeVar("Answer")


class Strategy:
    """One device. `ddp` and others override what differs."""

    name = "single"
    reason = "one device"
    """Why it was chosen: for run.json."""
    divides_weights = False
    """Whether `place` brings weights to the device piece by piece, so that no rank ever holds the whole model there."""
    leaves_out_overflows = False
    """Whether it scales fp16 losses and leaves out steps that overflow, so that nobody else need look."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.rank = 0
        self.world_size = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def shard(self, objective: nn.Module, precision: Precision) -> None:
        """Divide the weights of `objective` among the ranks; if nothing is divided, they are on the device already."""

    def with_full_params(self, objective: nn.Module, question: Callable[[], Answer]) -> Answer:
        """What `question` returns, which calls the model in `objective` past it. Every rank must call it."""
        return question()

    def prepare(
        self, objective: nn.Module, precision: Precision, make_optimizer: MakeOptimizer
    ) -> tuple[nn.Module, Optimizer]:
        """The module to call in training, and its optimiser.

        Args:
            make_optimizer: an optimiser over the parameters that `objective` has when it is called.
        """
        return objective, make_optimizer()

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Context for all but the last micro-batch of a step."""
        return nullcontext()

    def precision_of_loop(self, precision: Precision) -> Precision:
        """What the loop does around the objective: autocast, and scaling of fp16 losses."""
        return precision

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss` to what this step has."""
        loss.backward()

    def clip(self, parameters: list[nn.Parameter], limit: float | None) -> torch.Tensor:
        """Scale gradients down to a norm of `limit`; returns the norm that they had.

        Returns:
            () on the device: the norm of all gradients as one vector, the same on every rank.
        """
        norm = self._norm([_row_norms(each.grad) for each in parameters if each.grad is not None])
        if limit is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return norm

    def _norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.get_total_norm(gradients)

    def gather_full(self, model: nn.Module, parameters: Collection[nn.Parameter], dtype: torch.dtype) -> None:
        """Bring `parameters` of `model` together on the main rank, in `dtype`; training is over after that.

        Every rank must call it. On the others `model` is undefined afterwards.
        """
        for parameter in parameters:
            parameter.data = parameter.data.to(dtype)

    def content(self, model: nn.Module, optimizer: Optimizer) -> CheckpointContent:
        """Weights and optimiser state as checkpoints of this strategy hold them."""
        return NamedTensors(model, optimizer, alone=self.world_size == 1)

    def gather(self, word: str) -> list[str]:
        """What each rank says, in their order."""
        return [word]

    def sum(self, values: list[torch.Tensor | float]) -> list[float]:
        """Sums over ranks of some scalars, as host numbers: the one synchronisation of a logged step."""
        return stack(values, self.device).tolist()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` summed over ranks, in place."""
        return tensor

    def mean(self, total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """() mean over all ranks, from this rank's sum and count; stays on the device."""
        both = self.all_reduce(torch.stack([total, count]))
        return both[0] / both[1]

    def barrier(self) -> None:
        """Wait for all ranks."""

    def gradient_scale(self) -> float:
        """What a summed loss is multiplied with so that gradients come out summed over ranks."""
        return 1.0

    def close(self) -> None:
        """Leave the process group."""


def _row_norms(gradient: torch.Tensor) -> torch.Tensor:
    """Numbers whose norm is that of `gradient`: on CPU torch adds up one after the other, in fp32, what is one vector.

    Of a matrix of 50 million numbers the norm came out 0.4 % too small (torch 2.13).
    """
    is_whole = type(gradient) is torch.Tensor
    return torch.linalg.vector_norm(gradient, dim=-1) if is_whole and gradient.ndim > 1 else gradient


def stack(values: list[torch.Tensor | float], device: Device) -> torch.Tensor:
    """(values,) on the device: scalars that are there already, and numbers of the host, copied once."""
    # fp64 on the way to the host, where the device has it: sums of many losses keep fp32's last digit.
    dtype = torch.float64 if device.supports_fp64 else torch.float32
    numbers = torch.tensor([each for each in values if not isinstance(each, torch.Tensor)], dtype=dtype)
    copied = iter(numbers.to(device.torch_device).unbind())
    return torch.stack([each.detach().to(dtype) if isinstance(each, torch.Tensor) else next(copied) for each in values])
