"""The programs that `doctor --deep` starts. Each computes with torch and prints one line of JSON.

They are separate processes because a broken driver ends a process without an exception. Started as
`python -m ascendtune.check.doctor.probe` with one of

    compute KIND INDEX                  compute, copy and allocate on one device
    all_reduce KIND RANK RANKS STORE    one of RANKS processes that add up a vector; their rendezvous is the file STORE
    transfer_to_npu                     a script for CUDA; it does not import torch_npu

KIND and INDEX (or RANK) name a device as this process sees it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

    from ascendtune.machine.torch_backend.device import Device
    from ascendtune.machine.visible import Kind

_SIZE = 256, 512, 128
_COPY_BYTES = 64 << 20
_MOST_BYTES = 2 << 30

_ELEMENTS = 4 << 20
_REPEATS = 4
_LIMIT = timedelta(seconds=90)
"""Time that a rank waits for another: less than the time limit of the program, so that it can report the time-out."""

_SQUARE = 256


def main(arguments: list[str]) -> None:
    """Run the program in the first argument."""
    name, *rest = arguments
    sys.stdout.write(json.dumps(_PROGRAMS[name](*rest)) + "\n")


def compute(kind: str, index: str) -> dict[str, Any]:
    """name, memory_total_bytes, allocated_bytes, errors ({dtype: relative error} against float64 on the CPU), and copy
    speeds in bytes per second."""
    device = _opened(kind, int(index))
    found: dict[str, Any] = {
        "name": device.name,
        "memory_total_bytes": device.memory_total_bytes,
        "errors": _errors(device),
    }
    if not device.shares_host_memory:
        found |= _speeds(device)
    return found | {"allocated_bytes": _allocate(device)}


def all_reduce(kind: str, rank: str, ranks: str, store: str) -> dict[str, Any]:
    """backend, wrong_elements, bytes_per_second (bytes of the vector over the seconds of one all-reduce)."""
    import torch.distributed as dist

    # As in a job of one host: nothing listens beyond loopback.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = _opened(kind, int(rank))
    dist.init_process_group(
        device.collective_backend, init_method=f"file://{store}", rank=int(rank), world_size=int(ranks), timeout=_LIMIT
    )
    result = _add_up(device, int(rank), int(ranks))
    dist.destroy_process_group()
    return result


def transfer_to_npu() -> dict[str, Any]:
    """is_available, device (type of the tensors), error (relative; the larger of product and gradient)."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(_SQUARE, _SQUARE, generator=generator) for _ in range(2))
    is_available = torch.cuda.is_available()
    moved = rows.cuda()
    torch.cuda.set_device(0)
    parameter = torch.nn.Parameter(weight.to("cuda:0"))
    product = moved @ parameter
    (gradient,) = torch.autograd.grad(product.sum(), parameter)
    torch.cuda.synchronize()
    exact = rows.double() @ weight.double()
    exact_gradient = rows.double().sum(0)[:, None].expand(_SQUARE, _SQUARE)
    error = max(_relative_error(product.detach(), exact), _relative_error(gradient, exact_gradient))
    return {"is_available": is_available, "device": moved.device.type, "error": error}


def _opened(kind: str, index: int) -> Device:
    from ascendtune.machine.torch_backend.find import open_device

    device = open_device(cast("Kind", kind), index)
    device.activate()
    return device


def _relative_error(seen: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the difference over the norm of `exact`, a float64 tensor on the CPU of the same shape."""
    return float((seen.cpu().double() - exact).norm() / exact.norm())


def _errors(device: Device) -> dict[str, float]:
    """Dtype -> error of a product of (256, 512) and (512, 128), for each dtype that the device computes in."""
    import torch

    dtypes = {"fp32": torch.float32}
    if device.computes_bf16:
        dtypes["bf16"] = torch.bfloat16
    if device.supports_fp16:
        dtypes["fp16"] = torch.float16
    rows, inner, columns = _SIZE
    errors = {}
    for name, dtype in dtypes.items():
        generator = torch.Generator().manual_seed(0)
        left = torch.randn(rows, inner, generator=generator).to(dtype)
        right = torch.randn(inner, columns, generator=generator).to(dtype)
        product = left.to(device.torch_device) @ right.to(device.torch_device)
        errors[name] = _relative_error(product, left.double() @ right.double())
    return errors


def _speeds(device: Device) -> dict[str, float]:
    import torch

    host = torch.empty(_COPY_BYTES, dtype=torch.uint8)
    on_device = host.to(device.torch_device)
    device.synchronize()
    began = time.perf_counter()
    on_device.copy_(host)
    device.synchronize()
    middle = time.perf_counter()
    on_device.cpu()
    ended = time.perf_counter()
    return {
        "to_device_bytes_per_second": _COPY_BYTES / (middle - began),
        "from_device_bytes_per_second": _COPY_BYTES / (ended - middle),
    }


def _allocate(device: Device) -> int:
    """Allocate an eighth of the memory, 2 GiB at most, write all of it and free it; the bytes."""
    import torch

    count = min(device.memory_total_bytes // 8, _MOST_BYTES)
    if device.shares_host_memory:
        count = min(count, _COPY_BYTES)
    torch.zeros(count, dtype=torch.uint8, device=device.torch_device).add_(1)
    device.synchronize()
    return count


def _add_up(device: Device, rank: int, ranks: int) -> dict[str, Any]:
    import torch

    from ascendtune.check.comm.call import CollectiveGroup, prepare
    from ascendtune.check.comm.collective import modulus
    from ascendtune.check.comm.timing import measure

    size_bytes = _ELEMENTS * torch.float32.itemsize
    fits = modulus("float32", ranks)
    assert fits is not None, "two ranks' sums are exact"
    setting = CollectiveGroup(rank, tuple(range(ranks)), _ELEMENTS, torch.float32, fits, device.torch_device)
    call = prepare("all_reduce", setting)
    call.fill()
    call.run()
    device.synchronize()
    wrong = sum(part["wrong"] for part in call.compare())
    call.clear()
    seconds = median(measure(call.run, device, size_bytes, lambda seconds: _REPEATS))
    return {"backend": device.collective_backend, "wrong_elements": wrong, "bytes_per_second": size_bytes / seconds}


_PROGRAMS: dict[str, Callable[..., dict[str, Any]]] = {
    "compute": compute,
    "all_reduce": all_reduce,
    "transfer_to_npu": transfer_to_npu,
}

if __name__ == "__main__":
    main(sys.argv[1:])
