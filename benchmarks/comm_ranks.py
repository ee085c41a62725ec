"""One of two ranks under torchrun: a bare loop and what `comm bench` does, in turn; rank 0 prints JSON.

    comm_ranks.py PAIRS SIZE…

{size in bytes: [[seconds of the bare loop, seconds of `comm bench`], …]}, each a median over the same number of calls.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

from ascendtune.check.comm.call import Call, CollectiveGroup, prepare
from ascendtune.check.comm.timing import measure
from ascendtune.machine.torch_backend.device import Device
from ascendtune.machine.torch_backend.find import open_device

_SAMPLES = 20


def bare(data: torch.Tensor, calls: int) -> float:
    for _ in range(5):
        dist.all_reduce(data)
    stretches = []
    for _ in range(_SAMPLES):
        began = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(data)
        stretches.append((time.perf_counter() - began) / calls)
    return statistics.median(stretches)


def ours(call: Call, device: Device, size: int) -> float:
    return statistics.median(measure(call.run, device, size, lambda seconds: _SAMPLES))


def slowest(seconds: float) -> float:
    """Of both ranks, as `comm bench` counts."""
    each = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(each, dist.ReduceOp.MAX)
    return each.item()


dist.init_process_group("gloo")
device = open_device("cpu")
device.activate()
found: dict[int, list[list[float]]] = {}
for size in map(int, sys.argv[2:]):
    data, calls = torch.zeros(size // 4), max(1, min(16, (64 << 20) // size))
    call = prepare(
        "all_reduce", CollectiveGroup(dist.get_rank(), (0, 1), size // 4, torch.float32, 2, device.torch_device)
    )
    found[size] = []
    for number in range(int(sys.argv[1])):
        # The first of a pair changes.
        if number % 2:
            second = slowest(ours(call, device, size))
            found[size].append([slowest(bare(data, calls)), second])
        else:
            first = slowest(bare(data, calls))
            found[size].append([first, slowest(ours(call, device, size))])
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.destroy_process_group()
