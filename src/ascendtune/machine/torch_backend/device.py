"""A device as training uses it: an object with methods, so that no code needs `if device == "npu"`."""

from __future__ import annotations

import gzip
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import torch

from ascendtune.core.errors import MachineError
from ascendtune.machine.visible import Kind

_MOST_ALLOCATIONS = 200_000
"""Limit of a memory snapshot: some hundred MB."""


class StepProfiler(Protocol):
    """The part of torch.profiler.profile that torch_npu.profiler also has."""

    def start(self) -> None: ...

    def step(self) -> None: ...

    def stop(self) -> None: ...

    def add_metadata_json(self, key: str, value: str) -> None: ...


class HostGradScaler(torch.amp.GradScaler):
    """A scaler whose scale is in host memory, for gradients in host memory.

    torch's has it on the device of the loss, queues a copy to the gradients' device, and computes with the copy at
    once: on the host before the copy is complete (torch 2.6 to 2.13, `_MultiDeviceReplicator`).
    """

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        super()._lazy_init_scale_growth_tracker(torch.device("cpu"))


class Device(ABC):
    """One accelerator (or the CPU) that this process computes on."""

    kind: Kind
    collective_backend: str
    """Name for torch.distributed: gloo, nccl or hccl."""

    def __init__(self, index: int = 0) -> None:
        self.index = index

    @property
    @abstractmethod
    def attention(self) -> str:
        """The attention for `auto`; a key of the table in train/attention."""

    @property
    def kernels(self) -> str | None:
        """The fused operators for `kernel: auto`; a key of the table in train/kernel."""
        return None

    @property
    @abstractmethod
    def torch_device(self) -> torch.device:
        """The torch device to which tensors are moved."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The vendor's name of the chip."""

    @property
    @abstractmethod
    def memory_total_bytes(self) -> int:
        """Memory that this device can address."""

    def memory_free_bytes(self) -> int:
        """Memory that is free now, in bytes. On CPU: available memory according to the operating system."""
        return int(torch.get_device_module(self.torch_device).mem_get_info(self.index)[0])

    @abstractmethod
    def memory_peak_bytes(self) -> int:
        """Peak memory of this process, in bytes. On CPU: resident set, including the interpreter."""

    @abstractmethod
    def activate(self) -> None:
        """Make this the process's current device and apply its defaults. Called once, before any tensor exists."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all queued operations are complete."""

    @property
    @abstractmethod
    def supports_bf16(self) -> bool: ...

    @property
    @abstractmethod
    def supports_fp16(self) -> bool: ...

    @property
    def computes_bf16(self) -> bool:
        """Whether bf16 works at all, however slowly; a chip without it raises in the middle of a step."""
        return self.supports_bf16

    @property
    def supports_fp8(self) -> bool:
        """Whether it supports 8-bit floats at all; otherwise an operator on one can break the whole process."""
        return True

    deterministic_variables: Mapping[str, str] = MappingProxyType({})
    """Environment variables by which the libraries below torch give the same bits every time."""
    supports_fp64 = True
    batches_messages = True
    """Whether torch.distributed can start messages in both directions as one (batch_isend_irecv)."""
    runs_gpu_packages = False
    """Whether flash-linear-attention, mamba-ssm and causal-conv1d, whose kernels are written for GPUs, run here."""
    binds_process_group = True
    """Whether the device of a rank is passed to torch.distributed, so that it connects early and need not guess."""

    @property
    def shares_host_memory(self) -> bool:
        """Whether tensors of this device are in host memory: nothing to copy, pin or offload."""
        return False

    @property
    def runs_asynchronously(self) -> bool:
        """Whether operations return before they are complete, so that reading a number waits for all queued
        operations."""
        return True

    def copy_to_host(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Queue a copy of `tensor`, any shape and dtype; returns a function that waits for the copy and returns it."""
        copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copied.copy_(tensor, non_blocking=True)
        done = torch.get_device_module(self.torch_device).Event()
        done.record()

        def wait() -> torch.Tensor:
            done.synchronize()
            return copied

        return wait

    def pin(self, buffer: torch.Tensor) -> bool:
        """Lock the pages of `buffer`, (bytes,) uint8 in host memory, so that copies to it need no buffer of the driver.

        Unlike torch's `pin_memory`, which rounds sizes up to a power of two, it takes no more memory. Most devices have
        no such call.

        Returns:
            Whether they are locked. Only then a copy need not be waited for: with other memory, according to CANN,
            copies fail in unpredictable ways (aclrtMemcpyAsync, CANN 8.0).
        """
        return False

    def use_in_thread(self) -> None:
        """Make this the device of a further thread of the process; torch keeps the current device per thread."""
        torch.get_device_module(self.torch_device).set_device(self.index)

    def random_state(self) -> torch.Tensor | None:
        """State of the device's own generator: (bytes,) uint8; None if torch's CPU generator is the only one."""
        return torch.get_device_module(self.torch_device).get_rng_state()  # type: ignore[no-any-return]

    def set_random_state(self, state: torch.Tensor) -> None:
        """Restore the result of `random_state`: (bytes,) uint8."""
        torch.get_device_module(self.torch_device).set_rng_state(state)

    def fuses_optimizer(self, compute: str) -> bool:
        """Whether torch's AdamW with `fused=True` is correct here when matrices are multiplied in `compute`."""
        return True

    def gradient_scaler(self, *, on_host: bool = False) -> torch.amp.GradScaler:
        """Scales the loss so that small fp16 gradients do not underflow, and skips steps in which they overflow.

        Args:
            on_host: whether gradients are in host memory when they are unscaled.

        Raises:
            MachineError: the device does not support it.
        """
        return HostGradScaler(self.kind) if on_host else torch.amp.GradScaler(self.kind)

    @property
    @abstractmethod
    def peak_flops(self) -> float | None:
        """Dense bf16 FLOP/s of the vendor's data sheet, or None if unknown; the base of `mfu`."""

    @abstractmethod
    def versions(self) -> dict[str, str | None]:
        """Versions of the software below torch, for run.json."""

    def settings(self) -> dict[str, str]:
        """Settings of this process, besides torch's defaults, that affect speed or memory, for run.json."""
        return {}

    def product_types(self) -> dict[str, str]:
        """The types to which matrix products (`matmul`) and convolutions (`conv`) round fp32 inputs in this process.

        Empty if unknown. For run.json: a program, a container's variable or the vendor's default may choose TF32 or
        HF32.
        """
        return {}

    def profiler(self, directory: Path, name: str, *, steps: int, stacks: bool, memory: bool) -> StepProfiler:
        """A profiler that warms up in the step in which it is started, then records `steps` steps.

        It writes `NAME.trace.json.gz`, in Chrome's format, to `directory` when it stops.

        Args:
            stacks: record the Python stack of every operator.
            memory: record every allocation.
        """

        # Otherwise Kineto prints each start and stop to stderr.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")

        def write(profiler: torch.profiler.profile) -> None:
            plain, packed = directory / f".{name}.part.json", directory / f".{name}.part.gz"
            profiler.export_chrome_trace(str(plain))
            # torch would compress with the highest level, which takes five times as long.
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            plain.unlink()
            packed.replace(directory / f"{name}.trace.json.gz")

        return torch.profiler.profile(
            activities=self.profiled_activities(),
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=steps, repeat=1),
            on_trace_ready=write,
            with_stack=stacks,
            profile_memory=memory,
        )

    def memory_history(self, path: Path) -> AbstractContextManager[None]:
        """Context that records every allocation with its Python stack, then writes torch's memory snapshot to `path`.

        The last `_MOST_ALLOCATIONS` allocations are kept. pytorch.org/memory_viz shows the file; this project never
        reads it, because it is a pickle.
        """
        return _memory_history(torch.get_device_module(self.torch_device).memory, path)

    def profiled_activities(self) -> list[torch.profiler.ProfilerActivity]:
        """The activities that torch's own profiler records here."""
        return [torch.profiler.ProfilerActivity.CPU]

    def best_precision(self) -> Literal["bf16", "fp16", "fp32"]:
        """The precision for `precision: auto`."""
        if self.supports_bf16:
            return "bf16"
        return "fp16" if self.supports_fp16 else "fp32"


@contextmanager
def _memory_history(recorder: Any, path: Path) -> Iterator[None]:
    """Implementation of `Device.memory_history`; `recorder` is torch.cuda.memory or torch_npu.npu.memory."""
    recorder._record_memory_history(max_entries=_MOST_ALLOCATIONS, stacks="python")
    try:
        yield
        recorder._dump_snapshot(str(path))
    finally:
        recorder._record_memory_history(enabled=None)


def require_index(index: int, count: int, kind: Kind) -> None:
    """Raise MachineError if there is no device `index` among `count`."""
    if index >= count:
        raise MachineError(
            f"{kind} device {index} does not exist: torch sees {count}",
            code="unknown-device",
            remedy="use fewer devices, with --devices, or check the visible-devices variable",
        )
