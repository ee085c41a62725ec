"""The interface between the loop and a strategy, its simplest case (one device), and the base class of all others."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ascendtune.core.errors import MachineError, translated_disk_errors
from ascendtune.core.threads import run_in_daemon_thread
from ascendtune.machine.peers import init_method, require_own_peers
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.content import CheckpointContent, NamedTensors
from ascendtune.train.deferred_weights import move_in_parts, nothing_deferred
from ascendtune.train.gradient_norm import norm_of_parts
from ascendtune.train.object_collectives import refuse_foreign_pickles
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.host_copies import HostCopies, bytes_in_memory

MakeOptimizer = Callable[[], Optimizer]
WorkContext = Callable[[str], AbstractContextManager[None]]
"""`PatientBarrier.work`: context of work that may take one host hours longer than another ("loads the model")."""
Answer = TypeVar("Answer")
COMFORTABLE = 0.7
"""Share of a device's memory for weights, gradients and optimizer state; the rest is left for activations."""
# Long enough for the first step on a slow file system, short enough that a lost rank is noticed the same day.
TIMEOUT = timedelta(minutes=30)
_GOES_ON_SECONDS = 60.0
"""Interval of the collectives in which the main rank reports that it still works."""


class RootModule(nn.Module):
    """The module that strategies shard and wrap: calls any function of `model` with the weights gathered."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @torch.no_grad()
    def with_full_params(self, function: Callable[[], Answer]) -> Answer:
        """The result of `function`, without gradients. Every rank must call this."""

        def outcome() -> tuple[Answer | None, Exception | None]:
            # An exception raised inside of the forward pass would leave the weights gathered.
            try:
                return function(), None
            except Exception as error:  # noqa: BLE001  # raised again below
                return None, error

        result, error = self(outcome)
        if error is not None:
            try:
                raise error
            finally:
                # The traceback refers to this frame: the cycle would keep the frames' objects until the next
                # collection.
                del error
        return result  # type: ignore[no-any-return]


class Strategy:
    """One device. Subclasses such as `ddp` override the differences."""

    name = "single"
    shards_weights = False
    """Whether `shard` moves weights to the device part by part, so that no rank has the whole model there."""
    is_sharded = False
    """Whether a rank has only its shard of a gradient or a trained weight."""
    updates_on_device = True
    """Whether the loop's optimizer updates tensors of the device, not those of an engine or in host memory."""
    clips_in_step = False
    """Whether the optimizer clips in its own step, and skips steps with gradients that are not finite."""

    def __init__(self, device: Device, reason: str = "one device") -> None:
        self.uneven_work: WorkContext = lambda doing: nullcontext()
        self.uneven_writing: WorkContext = lambda doing: nullcontext()
        """The same for the thread that writes checkpoints."""
        self.device = device
        self.reason = reason
        """Reason for this choice, for run.json."""
        self.rank = 0
        self.world_size = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files of the whole run."""
        return self.rank == 0

    @property
    def keeps_host_weights(self) -> bool:
        """Whether weights stay in host memory as they are loaded: neither sharded nor moved to a device."""
        return not self.shards_weights and self.device.shares_host_memory

    def shard(
        self, root: RootModule, precision: Precision, fill: Callable[[nn.Module], None] = nothing_deferred
    ) -> None:
        """Shard the weights; strategies that do not shard expect them on the device already.

        Args:
            fill: reads those weights of a module that are still in their files; called before the module is sharded.
        """

    def shard_frozen(self, root: RootModule, precision: Precision, fill: Callable[[nn.Module], None]) -> None:
        """Move another model, which is not trained, to the device; shard it if trained models are sharded.

        Args:
            fill: as in `shard`, which must have been called before.
        """
        move_in_parts(root, fill, self.device.torch_device)

    def prepare(
        self, root: RootModule, precision: Precision, make_optimizer: MakeOptimizer
    ) -> tuple[nn.Module, Optimizer]:
        """Return the module to call in training, and its optimizer.

        Args:
            make_optimizer: makes an optimizer over the parameters that `root` has when it is called.
        """
        return root, make_optimizer()

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Context of all micro-batches of a step but the last."""
        return nullcontext()

    def shares_casts(self, micro_batches: int) -> bool:
        """Whether the micro-batches of a step share the casts of the weights; with one it would only keep them longer.

        Sharded weights are gathered in the compute dtype for each micro-batch.
        """
        return micro_batches > 1 and not self.shards_weights

    def loop_precision(self, precision: Precision) -> Precision:
        """Precision in the loop, around the objective: autocast, and scaling of fp16 losses."""
        return precision

    def backward(self, module: nn.Module, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, () fp32, to those of this step."""
        loss.backward()

    def grad_norm(self, module: nn.Module, parameters: list[nn.Parameter]) -> torch.Tensor:
        """Norm of all gradients as one vector, () fp32 on the device, equal on every rank.

        If the optimizer clips in its step, call this after the step; it returns the norm before clipping.
        """
        return norm_of_parts([each.grad for each in parameters if each.grad is not None])

    def clip(self, parameters: list[nn.Parameter], limit: float, norm: torch.Tensor) -> None:
        """Scale the gradients down to a norm of `limit`; `norm`, () fp32, is their present norm."""
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)

    def full_param(self, parameter: nn.Parameter) -> torch.Tensor:
        """The full value of a parameter, any shape. Every rank must call this."""
        return parameter.detach()

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The full gradient of a trained parameter, any shape, summed over ranks; None if it has none.

        Every rank must call this, before the optimizer steps.
        """
        return parameter.grad

    def gather_full(
        self, model: nn.Module, parameters: Collection[nn.Parameter], dtype: torch.dtype, directory: Path
    ) -> None:
        """Gather `parameters` of `model` on the host of the main rank, in `dtype`. Training cannot go on afterwards.

        Every rank must call this. On other ranks `model` is not changed.

        Args:
            directory: of the file with those that the host's memory has no room for.

        Raises:
            MachineError: the disk has no room for them either.
        """
        full: dict[nn.Parameter, nn.Parameter] = {}
        copies = HostCopies(directory, bytes_in_memory())
        # One parameter at a time, in an order that is the same on all ranks; tied weights stay tied.
        for parameter in parameters:
            gathered = self.full_param(parameter)
            if self.is_main:
                with translated_disk_errors(directory, "gathering the weights of the model"):
                    copy = copies.copy(gathered, dtype)
                full[parameter] = nn.Parameter(copy, parameter.requires_grad)
            del gathered
        copies.close()
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter in full:
                    module.register_parameter(name, full[parameter])

    def checkpoint_content(self, model: nn.Module, optimizer: Optimizer) -> CheckpointContent:
        """Weights and optimizer state in the form of this strategy's checkpoints."""
        return NamedTensors(
            model, optimizer, self.device,
            rank=self.rank, ranks=self.world_size, uneven_writing=lambda: self.uneven_writing("writes a checkpoint"),
        )  # fmt: skip

    def gather(self, text: str) -> list[str]:
        """The `text` of each rank, ordered by rank."""
        return [text]

    def from_main(self, text: str) -> str:
        """The main rank's `text`, for facts that hosts may see differently: NFS caches directories for a minute."""
        return self.gather(text)[0]

    def agree(self, answer: bool) -> bool:
        """Whether `answer` is true on every rank."""
        return "no" not in self.gather("yes" if answer else "no")

    def sum_on_device(self, values: list[torch.Tensor | float]) -> torch.Tensor:
        """Sums over ranks of scalars, () each: (values,) on the device, in fp64 if the device has it, else fp32."""
        return self.all_reduce(stack_scalars(values, self.device))

    def sum(self, values: list[torch.Tensor | float]) -> list[float]:
        """Sums over ranks of scalars, () each, as host numbers. Waits for the device."""
        return self.sum_on_device(values).tolist()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor`, any shape, over ranks in place, and return it."""
        return tensor

    def mean(self, total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Mean over all ranks, () on the device, from this rank's sum and count, () each."""
        both = self.all_reduce(torch.stack([total, count]))
        return both[0] / both[1]

    def barrier(self) -> None:
        """Wait for all ranks."""

    def on_main(self, work: Callable[[], None]) -> None:
        """Run `work` on the main rank, while the others wait for it, without a time-out."""
        work()

    def fill_on_main(self, fill: Callable[[], None], tensors: Sequence[torch.Tensor]) -> None:
        """Fill `tensors`, each of any shape, on every rank with the values that `fill` computes on the main rank.

        If each rank computed them, they could differ in last digits, or signs, between processors.
        """
        fill()

    def gradient_scale(self) -> float:
        """Factor of a summed loss that makes its gradients sums over ranks."""
        return 1.0

    def close(self, *, together: bool = True) -> None:
        """Leave the process group, which another training of this process needs.

        Args:
            together: whether every rank calls this now. If not, the group stays until the process ends: NCCL completes
                what is queued, and waits for the other ranks of this host (ncclCommDestroy, NCCL 2.29).
        """


class GroupStrategy(Strategy):
    """Joins the process group of torchrun's environment variables; without them, makes a group of one process."""

    def __init__(self, device: Device, recipe: Recipe, reason: str = "as asked") -> None:
        super().__init__(device, reason)
        self.recipe = recipe
        backend = device.collective_backend
        # Gloo beside the device's own backend, for the host tensors of checkpoints and stop signals.
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
        """Raise if `auto` chose different strategies: ranks would wait in collectives that others never call."""
        names = self.gather(self.name + ", fsdp.offload: true" * self.recipe.parallel.fsdp.offload)
        other = next((rank for rank, each in enumerate(names) if each != names[0]), None)
        if other is not None:
            raise MachineError(
                f"parallel.strategy: auto is {names[0]} on rank 0 and {names[other]} on rank {other}: their devices "
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

        # A collective times out after `TIMEOUT`: until the work is done, the ranks repeat a short one.
        done = run_in_daemon_thread(work_on_device) if self.is_main else None
        while True:
            is_done = done is not None and bool(wait([done], _GOES_ON_SECONDS).done)
            if done is not None and is_done:
                # If the work failed, the other ranks notice the lost connection.
                done.result()
            if self.sum([float(is_done)])[0]:
                return

    def fill_on_main(self, fill: Callable[[], None], tensors: Sequence[torch.Tensor]) -> None:
        self.on_main(fill)
        for tensor in tensors:
            broadcast(tensor)

    def gradient_scale(self) -> float:
        # The gradients are averaged over ranks; the loss is divided by the global token count, so the average must be
        # scaled to a sum.
        return float(self.world_size)

    def close(self, *, together: bool = True) -> None:
        if dist.is_initialized() and (together or self.world_size == 1):
            dist.destroy_process_group()


def broadcast(tensor: torch.Tensor) -> None:
    """Copy the main rank's values of `tensor`, any shape, to all ranks."""
    if not tensor.numel():
        return
    # Backends accept contiguous tensors only; the initial values of an adapter may be a view of a larger tensor.
    sent = tensor.contiguous()
    dist.broadcast(sent, src=0)
    if sent is not tensor:
        tensor.copy_(sent)


def started_by_torchrun() -> bool:
    """Whether torchrun's variables describe more than one rank."""
    return world_size() > 1


def world_size() -> int:
    """Number of ranks that torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def node_count() -> int:
    """Number of nodes on which torchrun has started ranks."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def node_rank() -> str:
    """torchrun's number of this node."""
    return os.environ.get("GROUP_RANK", "0")


def stack_scalars(values: list[torch.Tensor | float], device: Device) -> torch.Tensor:
    """(values,) on the device, from scalars on the device, () each, and numbers of the host, copied together."""
    # fp64 on the way to the host, if the device has it: sums of many losses keep fp32's last digit.
    dtype = torch.float64 if device.supports_fp64 else torch.float32
    numbers = torch.tensor([each for each in values if not isinstance(each, torch.Tensor)], dtype=dtype)
    if not device.shares_host_memory:
        # The copy from memory that is not pinned would wait for the device.
        numbers = numbers.pin_memory().to(device.torch_device, non_blocking=True)
    copied = iter(numbers.unbind())
    return torch.stack([each.detach().to(dtype) if isinstance(each, torch.Tensor) else next(copied) for each in values])
