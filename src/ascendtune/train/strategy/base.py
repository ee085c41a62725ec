"""The interface between the loop and a strategy, with one device as its simplest case, and the base of all others."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ascendtune.core.errors import MachineError
from ascendtune.core.threads import run_in_daemon_thread
from ascendtune.machine.peers import init_method, require_own_peers
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.content import CheckpointContent, NamedTensors
from ascendtune.train.deferred_weights import nothing_deferred
from ascendtune.train.gradient_norm import norm_of_parts
from ascendtune.train.object_collectives import refuse_foreign_pickles
from ascendtune.train.precision import Precision

MakeOptimizer = Callable[[], Optimizer]
OwnTime = Callable[[str], AbstractContextManager[None]]
"""`PatientBarrier.work`: the context of what may take one host hours longer than another, told as "loads the model"."""
Answer = TypeVar("Answer")
COMFORTABLE = 0.7
"""Share of a device's memory that weights, gradients and optimizer state may take; the rest is for activations."""
# Long enough for the first step on a slow file system, short enough that a lost rank is noticed today.
TIMEOUT = timedelta(minutes=30)
_GOES_ON_SECONDS = 60.0
"""Between two signs that the main rank gives while it works alone."""


class RootModule(nn.Module):
    """The module that strategies shard and wrap: calls any function of `model` with the weights gathered for it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @torch.no_grad()
    def with_full_params(self, function: Callable[[], Answer]) -> Answer:
        """The result of `function`, without gradients. Every rank must call it."""

        def outcome() -> tuple[Answer | None, Exception | None]:
            # An exception that passed through the forward pass would leave the weights gathered.
            try:
                return function(), None
            except Exception as error:  # noqa: BLE001  # raised again below
                return None, error

        result, error = self(outcome)
        if error is not None:
            try:
                raise error
            finally:
                # Its traceback holds this frame: a cycle would keep all that the frames hold until the next collection.
                del error
        return result  # type: ignore[no-any-return]


class Strategy:
    """One device. `ddp` and others override what differs."""

    name = "single"
    divides_weights = False
    """Whether `shard` brings weights to the device piece by piece, so that no rank ever holds the whole model there."""
    is_sharded = False
    """Whether a rank holds only its part of a gradient or a trained weight."""
    updates_on_device = True
    """Whether the optimizer that it is given updates tensors of the device: not an engine's, nor the host's."""
    clips_in_step = False
    """Whether the optimizer clips in its own step, and skips a step whose gradients are not finite."""

    def __init__(self, device: Device, reason: str = "one device") -> None:
        self.in_own_time: OwnTime = lambda doing: nullcontext()
        self.writes_in_own_time: OwnTime = lambda doing: nullcontext()
        """The same for the thread that writes checkpoints."""
        self.device = device
        self.reason = reason
        """Why it was chosen: for run.json."""
        self.rank = 0
        self.world_size = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files of the whole run."""
        return self.rank == 0

    def shard(
        self, root: RootModule, precision: Precision, fill: Callable[[nn.Module], None] = nothing_deferred
    ) -> None:
        """Divide the weights among the ranks; if nothing is divided, they are on the device already.

        Args:
            fill: reads the weights of a module that are still in their files; called before it is divided.
        """

    def prepare(
        self, root: RootModule, precision: Precision, make_optimizer: MakeOptimizer
    ) -> tuple[nn.Module, Optimizer]:
        """The module to call in training, and its optimizer.

        Args:
            make_optimizer: makes an optimizer over the parameters that `root` has when it is called.
        """
        return root, make_optimizer()

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Context for all but the last micro-batch of a step."""
        return nullcontext()

    def shares_casts(self, micro_batches: int) -> bool:
        """Whether the micro-batches of a step use one cast of each weight; with one it would only live longer.

        Divided weights are gathered for each micro-batch, in the type that they are computed in.
        """
        return micro_batches > 1 and not self.divides_weights

    def loop_precision(self, precision: Precision) -> Precision:
        """What the loop does around the objective: autocast, and scaling of fp16 losses."""
        return precision

    def backward(self, module: nn.Module, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, () fp32, to those of this step."""
        loss.backward()

    def grad_norm(self, module: nn.Module, parameters: list[nn.Parameter]) -> torch.Tensor:
        """() fp32 on the device: the norm of all gradients as one vector, the same on every rank.

        Where the optimizer clips in its step: the norm before that step, known after it.
        """
        return norm_of_parts([each.grad for each in parameters if each.grad is not None])

    def clip(self, parameters: list[nn.Parameter], limit: float, norm: torch.Tensor) -> None:
        """Scale the gradients, whose norm is `norm`, () fp32, down to a norm of `limit`."""
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)

    def full_param(self, parameter: nn.Parameter) -> torch.Tensor:
        """The whole of a parameter, any shape. Every rank must call it."""
        return parameter.detach()

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The whole gradient of a trained parameter, any shape, summed over ranks; None where it has none.

        Every rank must call it, before the optimizer steps.
        """
        return parameter.grad

    def gather_full(self, model: nn.Module, parameters: Collection[nn.Parameter], dtype: torch.dtype) -> None:
        """Bring `parameters` of `model` together on the host of the main rank, in `dtype`; training is over after that.

        Every rank must call it. On the others `model` stays as it is.
        """
        full: dict[nn.Parameter, nn.Parameter] = {}
        # One at a time, in the order that all ranks have; tied weights stay tied.
        for parameter in parameters:
            gathered = self.full_param(parameter)
            if self.is_main:
                full[parameter] = nn.Parameter(gathered.to("cpu", dtype), parameter.requires_grad)
            del gathered
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter in full:
                    module.register_parameter(name, full[parameter])

    def content(self, model: nn.Module, optimizer: Optimizer) -> CheckpointContent:
        """Weights and optimizer state as checkpoints of this strategy hold them."""
        return NamedTensors(
            model, optimizer, self.device,
            rank=self.rank, ranks=self.world_size, in_own_time=lambda: self.writes_in_own_time("writes a checkpoint"),
        )  # fmt: skip

    def gather(self, text: str) -> list[str]:
        """The `text` of each rank, in the order of ranks."""
        return [text]

    def agree(self, answer: bool) -> bool:
        """Whether the `answer` of every rank is yes."""
        return "no" not in self.gather("yes" if answer else "no")

    def sum_on_device(self, values: list[torch.Tensor | float]) -> torch.Tensor:
        """(values,) on the device: sums over ranks of scalars, () each; fp64 where the device has it, else fp32."""
        return self.all_reduce(stack_scalars(values, self.device))

    def sum(self, values: list[torch.Tensor | float]) -> list[float]:
        """Sums over ranks of scalars, () each, as host numbers. Waits for the device."""
        return self.sum_on_device(values).tolist()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, any shape, summed over ranks in place."""
        return tensor

    def mean(self, total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """() mean over all ranks, from this rank's sum and count, () each; stays on the device."""
        both = self.all_reduce(torch.stack([total, count]))
        return both[0] / both[1]

    def barrier(self) -> None:
        """Wait for all ranks."""

    def on_main(self, work: Callable[[], None]) -> None:
        """Do `work` on the main rank, while the others wait for it, however long it takes."""
        work()

    def fill_on_main(self, fill: Callable[[], None], tensors: Sequence[torch.Tensor]) -> None:
        """Give `tensors`, each of any shape, on every rank the values that `fill` computes on the main rank.

        Ranks that computed the same would have other last digits, or other signs, on other processors.
        """
        fill()

    def gradient_scale(self) -> float:
        """What a summed loss is multiplied with so that gradients come out summed over ranks."""
        return 1.0

    def close(self) -> None:
        """Leave the process group."""


class GroupStrategy(Strategy):
    """Joins the process group that torchrun's variables describe; without them, a group of one process."""

    def __init__(self, device: Device, recipe: Recipe, reason: str = "as asked") -> None:
        super().__init__(device, reason)
        self.recipe = recipe
        backend = device.collective_backend
        # Gloo beside the device's own backend: checkpoints and stop signals talk from the host.
        both = backend if backend == "gloo" else f"cpu:gloo,{device.kind}:{backend}"
        bound = device.torch_device if device.binds_process_group else None
        refuse_foreign_pickles()
        if started_by_torchrun():
            dist.init_process_group(
                both,
                init_method=init_method(),
                rank=int(os.environ["RANK"]),
                world_size=world_size(),
                timeout=TIMEOUT,
                device_id=bound,
            )
            require_own_peers()
        else:
            dist.init_process_group(both, store=dist.HashStore(), rank=0, world_size=1, device_id=bound)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._require_one_strategy()

    def _require_one_strategy(self) -> None:
        """Raise where `auto` came to different strategies: ranks would wait in collectives that others never call."""
        chosen = self.gather(self.name + ", fsdp.offload: true" * self.recipe.parallel.fsdp.offload)
        other = next((rank for rank, each in enumerate(chosen) if each != chosen[0]), None)
        if other is not None:
            raise MachineError(
                f"parallel.strategy: auto is {chosen[0]} on rank 0 and {chosen[other]} on rank {other}: their devices "
                "have unequal memory",
                code="strategies-differ",
                remedy="set parallel.strategy: fsdp, with parallel.fsdp.offload where one of them needs it",
            )

    def gather(self, text: str) -> list[str]:
        texts: list[str | None] = [None] * self.world_size
        dist.all_gather_object(texts, text)
        return [each or "" for each in texts]

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        dist.barrier()

    def on_main(self, work: Callable[[], None]) -> None:
        def work_on_device() -> None:
            self.device.use_in_thread()
            work()

        # A rank that waits in one collective gives up after `TIMEOUT`: ranks tell each other that it goes on.
        done = run_in_daemon_thread(work_on_device) if self.is_main else None
        while True:
            is_done = done is not None and bool(wait([done], _GOES_ON_SECONDS).done)
            if done is not None and is_done:
                # Where it failed, the others learn it from the connection.
                done.result()
            if self.sum([float(is_done)])[0]:
                return

    def fill_on_main(self, fill: Callable[[], None], tensors: Sequence[torch.Tensor]) -> None:
        self.on_main(fill)
        for tensor in tensors:
            broadcast(tensor)

    def gradient_scale(self) -> float:
        # The ranks' gradients are averaged; the loss is divided by the global token count, so that average must become
        # a sum.
        return float(self.world_size)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def broadcast(tensor: torch.Tensor) -> None:
    """Give `tensor`, any shape, the values that the main rank has."""
    if not tensor.numel():
        return
    # Backends take contiguous tensors only; the initial values of an adapter may be a view of something larger.
    sent = tensor.contiguous()
    dist.broadcast(sent, src=0)
    if sent is not tensor:
        tensor.copy_(sent)


def started_by_torchrun() -> bool:
    """Whether torchrun's variables describe more than one rank."""
    return world_size() > 1


def world_size() -> int:
    """How many ranks torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def node_count() -> int:
    """On how many nodes torchrun has started ranks."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def node_rank() -> str:
    """torchrun's number of this node."""
    return os.environ.get("GROUP_RANK", "0")


def stack_scalars(values: list[torch.Tensor | float], device: Device) -> torch.Tensor:
    """(values,) on the device: scalars that are there already, and numbers of the host, copied once."""
    # fp64 on the way to the host, where the device has it: sums of many losses keep fp32's last digit.
    dtype = torch.float64 if device.supports_fp64 else torch.float32
    numbers = torch.tensor([each for each in values if not isinstance(each, torch.Tensor)], dtype=dtype)
    if not device.shares_host_memory:
        # From pinned memory: the copy of other memory waits for the device.
        numbers = numbers.pin_memory().to(device.torch_device, non_blocking=True)
    copied = iter(numbers.unbind())
    return torch.stack([each.detach().to(dtype) if isinstance(each, torch.Tensor) else next(copied) for each in values])
