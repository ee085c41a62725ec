"""One of the two programs that `doctor --deep` starts to add up a vector; prints one line of JSON.

Started as `python -m ascendtune.check.doctor.all_reduce_probe KIND RANK RANKS STORE`: rank RANK on the visible
device of that number, meeting the others in the file STORE.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ascendtune.machine.torch_backend.device import Device
    from ascendtune.machine.visible import Kind

_ELEMENTS = 4 << 20
_BYTES = 4 * _ELEMENTS
_REPEATS = 4
_LIMIT = timedelta(seconds=90)
"""Of a rank that waits for another; less than the time limit of the program, so that it can say so."""


def main(arguments: list[str]) -> None:
    """Join, add up, leave. `arguments` = [kind, rank, number of ranks, store]."""
    import torch.distributed as dist

    from ascendtune.machine.torch_backend.find import open_device

    kind, rank, ranks, store = arguments[0], int(arguments[1]), int(arguments[2]), arguments[3]
    # As in a job of one host: nothing listens beyond loopback.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = open_device(cast("Kind", kind), rank)
    device.activate()
    dist.init_process_group(
        device.collective_backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=_LIMIT
    )
    told = add_up(device, rank, ranks)
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(told) + "\n")


def add_up(device: Device, rank: int, ranks: int) -> dict[str, Any]:
    """backend, wrong_elements, bytes_per_second (bytes of the vector over the seconds of one all-reduce)."""
    import torch

    from ascendtune.check.comm.call import Setting, prepare
    from ascendtune.check.comm.dtype import modulus
    from ascendtune.check.comm.timing import measure

    fits = modulus("float32", ranks)
    assert fits is not None, "two ranks' sums are exact"
    setting = Setting(rank, tuple(range(ranks)), _ELEMENTS, torch.float32, fits, device.torch_device)
    call = prepare("all_reduce", setting)
    call.fill()
    call.run()
    device.synchronize()
    wrong = sum(part["wrong"] for part in call.compare())
    call.clear()
    seconds = median(measure(call.run, device, _BYTES, lambda seconds: _REPEATS))
    return {"backend": device.collective_backend, "wrong_elements": wrong, "bytes_per_second": _BYTES / seconds}


if __name__ == "__main__":
    main(sys.argv[1:])
