"""`torch.cuda` for the simulated device, and what torch does with memory that such tensors do not have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo  # it takes names of torch.cuda's, which must still be the original ones
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fsdp_param

import simulated_cuda.operators  # noqa: F401  # fills the table of operators
from ascendtune.machine.torch_backend.cuda import CudaDevice
from ascendtune.train.objective import logit_chunks
from simulated_cuda.pending import drain, is_pinned, pin, pin_address, set_sync_debug_mode, unpin_address, wait
from simulated_cuda.tensors import CUDA, OnCuda, use_in_thread

_MEMORY = 80 << 30
_PROPERTIES = SimpleNamespace(name="NVIDIA H200", total_memory=_MEMORY, major=9, minor=0, multi_processor_count=132)


class Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self._is_recorded = False

    def record(self, *_: Any) -> None:
        self._is_recorded = True

    def synchronize(self) -> None:
        assert self._is_recorded
        drain()

    def wait(self, *_: Any) -> None: ...


class Stream:
    device = CUDA

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, other: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def synchronize(self) -> None:
        wait("synchronize")


class Runtime:
    """`torch.cuda.cudart()`."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        pin_address(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        unpin_address(address)
        return 0


def install() -> None:
    """Make `torch.cuda` one of this device, for good."""
    stream = Stream()
    values: dict[str, Any] = {
        "Event": Event, "Stream": Stream, "cudart": Runtime, "set_device": lambda *_: use_in_thread(),
        "set_sync_debug_mode": set_sync_debug_mode, "is_available": _giving(True), "is_initialized": _giving(True),
        "_is_in_bad_fork": _giving(False), "device_count": _giving(1), "current_device": _giving(0),
        "current_stream": _giving(stream), "default_stream": _giving(stream), "stream": lambda _: nullcontext(),
        "synchronize": lambda *_: wait("synchronize"), "get_device_name": _giving(_PROPERTIES.name),
        "get_device_capability": _giving((9, 0)), "get_device_properties": _giving(_PROPERTIES),
        "is_bf16_supported": _giving(True), "is_current_stream_capturing": _giving(False),
        "mem_get_info": _giving((_MEMORY, _MEMORY)), "max_memory_allocated": _giving(1 << 30),
        "memory_allocated": _giving(1 << 30), "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        **dict.fromkeys(
            ("_lazy_init", "empty_cache", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"), _giving(None)
        ),
    }  # fmt: skip
    for name, value in values.items():
        setattr(torch.cuda, name, value)
    torch.cuda.amp.common.amp_definitely_not_available = _giving(False)
    torch.accelerator.is_available = _giving(True)
    torch.accelerator.current_accelerator = _giving(torch.device("cuda"))
    torch.Tensor.pin_memory = lambda self, *_: pin(self.clone())  # type: ignore[assignment, method-assign]
    torch.Tensor.is_pinned = lambda self, *_: is_pinned(self)  # type: ignore[assignment, method-assign]
    # `torch.tensor` copies to the device where the mode sees it.
    torch._C._set_only_lift_cpu_tensors(True)
    _fsdp_init._move_states_to_device = _move
    for name, replaced in (("free_storage", _free), ("alloc_storage", lambda _: None)):
        setattr(_fsdp_param, name, _of_device(replaced, getattr(_fsdp_param, name)))
    # There is no NCCL.
    CudaDevice.collective_backend, CudaDevice.binds_process_group = "gloo", False
    # It asks whether a tensor is torch's own.
    logit_chunks.type = lambda _: torch.Tensor  # type: ignore[attr-defined]


def _giving(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _of_device(replaced: Callable[[Any], None], original: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda tensor: replaced(tensor) if isinstance(tensor, OnCuda) else original(tensor)


def _free(tensor: OnCuda) -> None:
    """FSDP frees what it gathered; who reads that later gets numbers that are none."""
    if tensor.is_floating_point():
        storage = tensor.inner.untyped_storage()
        torch.empty(0, dtype=tensor.dtype).set_(storage).fill_(float("nan"))  # type: ignore[call-overload]


def _move(parameters: list[nn.Parameter], buffers: list[torch.Tensor], device: torch.device) -> None:
    """torch assigns to `data`, which cannot make another class of a tensor."""
    for each in [*parameters, *buffers]:
        if each.device != device and not each.is_meta:
            with torch.no_grad():
                moved = each.to(device)
            is_parameter = isinstance(each, nn.Parameter)
            torch.utils.swap_tensors(each, nn.Parameter(moved, each.requires_grad) if is_parameter else moved)
