"""One of the two programs that `doctor --deep` starts to add up a vector; prints one line of JSON.

Started as `python -m ascendtune.check.doctor.all_reduce_probe KIND RANK RANKS STORE`: rank RANK on the visible
device of that number, meeting the others in the file STORE.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ascendtune.machine.device import Device
    from ascendtune.machine.visible import Kind

_ELEMENTS = 4 << 20
_PERIOD = 1000
_REPEATS = 4
_LIMIT = timedelta(seconds=90)
"""Of a rank that waits for another; less than the time limit of the program, so that it can say so."""


def main(arguments: list[str]) -> None:
    """Join, add up, leave. `arguments` = [kind, rank, number of ranks, store]."""
    import torch.distributed as dist

    from ascendtune.machine.device import open_device

    kind, rank, ranks, store = arguments[0], int(arguments[1]), int(arguments[2]), arguments[3]
    device = open_device(cast("Kind", kind), rank if kind != "cpu" else 0)
    device.activate()
    dist.init_process_group(
        device.collective_backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=_LIMIT
    )
    told = add_up(device, rank, ranks)
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(told) + "\n")


def add_up(device: Device, rank: int, ranks: int) -> dict[str, Any]:
    """backend, wrong_elements, bytes_per_second (bytes of the vector over the seconds of one all-reduce).

    Element i of rank r is (i mod 1000) * (r + 1): every sum is exact in fp32.
    """
    import torch
    import torch.distributed as dist

    base = (torch.arange(_ELEMENTS) % _PERIOD).float()
    exact = base * (ranks * (ranks + 1) // 2)
    ours = (base * (rank + 1)).to(device.torch_device)
    dist.all_reduce(ours)
    wrong = int((ours.cpu() != exact).sum())
    device.synchronize()
    began = time.perf_counter()
    for _ in range(_REPEATS):
        dist.all_reduce(ours)
    device.synchronize()
    seconds = (time.perf_counter() - began) / _REPEATS
    return {
        "backend": device.collective_backend,
        "wrong_elements": wrong,
        "bytes_per_second": _ELEMENTS * 4 / seconds,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
