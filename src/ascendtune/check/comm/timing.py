"""`comm bench` on one rank: times collectives of growing size, and messages between pairs of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import permutations
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from ascendtune.check.comm.call import group_of, prepare
from ascendtune.check.comm.collective import COLLECTIVES, modulus
from ascendtune.check.comm.world import World
from ascendtune.machine.torch_backend.device import Device

_SHARE_OF_FREE_MEMORY = 0.5
_BUFFERS = 2
_WARM_UP = 4
"""Number of calls after the first one, which connects and allocates."""
_LONGEST_SECONDS, _FEWEST_SAMPLES = 20.0, 3
"""Limits on the samples of one size."""
_BATCH_BYTES, _LONGEST_BATCH = 64 << 20, 16


def time_sizes(world: World, work: dict[str, Any]) -> None:
    """Write a note {"row": …} for each size from `work["min_bytes"]` to `work["max_bytes"]`, doubling."""
    name, dtype = work["collective"], getattr(torch, work["dtype"])
    collective = COLLECTIVES[name]
    value_count = modulus(work["dtype"], world.size if collective.reduces else 1)
    most = _most_bytes(world)
    world.notes.write({"backend": world.device.collective_backend, "most_bytes": most})
    first, last = work["min_bytes"], min(work["max_bytes"], most)
    for count, size in collective.sizes(dtype.itemsize, world.size, first, last):
        world.begin(f"{name} of {size} bytes")
        call = prepare(name, group_of(world, count, dtype, value_count or 1))
        call.fill()
        call.run()
        world.device.synchronize()
        wrong = sum(part["wrong"] for part in call.compare()) if value_count else None
        call.clear()
        samples = partial(_samples, world, work["iterations"])
        seconds = measure(call.run, world.device, size, samples, world.restart_watchdog)
        row = {"bytes": size, "count": count, "samples": len(seconds), "seconds": median(seconds), "wrong": wrong}
        world.notes.write({"row": row})
        del call


def time_pairs(world: World, work: dict[str, Any]) -> None:
    """Write a note {"pair": …} for each pair of ranks with this rank in it; messages have `work["bytes"]` bytes."""
    size = min(work["bytes"], _most_bytes(world))
    message = torch.zeros(size, dtype=torch.uint8, device=world.device.torch_device)
    world.notes.write({"backend": world.device.collective_backend})
    for sender, receiver in permutations(range(world.size), 2):
        world.begin(f"message from rank {sender} to rank {receiver}")
        samples = partial(_samples, world, work["iterations"])
        if world.rank not in (sender, receiver):
            samples(0.0)
        else:
            send = _one_way(world, message, sender, receiver)
            seconds = measure(send, world.device, size, samples, world.restart_watchdog)
            world.notes.write({"pair": {"from": sender, "to": receiver, "bytes": size, "seconds": median(seconds)}})


def measure(
    run: Callable[[], object],
    device: Device,
    size_bytes: int,
    samples: Callable[[float], int],
    restart_watchdog: Callable[[], object] = lambda: None,
) -> list[float]:
    """Seconds per call, in several samples. Every rank must do the same number of calls.

    Small messages are timed in batches, because synchronizing the device after each would take longer than the message.

    Args:
        samples: returns the number of samples; called after the warm-up with the estimated seconds of one sample.
        restart_watchdog: called after the device was synchronized, outside of the timed section.
    """
    calls = max(1, min(_LONGEST_BATCH, _BATCH_BYTES // size_bytes))
    run()
    device.synchronize()
    restart_watchdog()
    start = time.perf_counter()
    for _ in range(_WARM_UP):
        run()
    device.synchronize()
    seconds = []
    for _ in range(samples(calls * (time.perf_counter() - start) / _WARM_UP)):
        restart_watchdog()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        device.synchronize()
        seconds.append((time.perf_counter() - start) / calls)
    return seconds


def _samples(world: World, requested: int, sample_seconds: float) -> int:
    """The requested number, or fewer if they would take too long; the same on every rank."""
    # Ranks outside of the pair wait meanwhile.
    longest = min(_LONGEST_SECONDS, world.limit.total_seconds() / 2)
    affordable = int(longest / sample_seconds) if sample_seconds else requested
    return min(map(int, world.exchange(str(min(requested, max(_FEWEST_SAMPLES, affordable))))))


def _one_way(world: World, message: torch.Tensor, sender: int, receiver: int) -> Callable[[], object]:
    if world.rank == sender:
        return lambda: dist.send(message, receiver)
    return lambda: dist.recv(message, sender)


def _most_bytes(world: World) -> int:
    """The largest buffer in bytes such that all buffers fit into half of the free memory; the same on every rank."""
    free = world.device.memory_free_bytes() * _SHARE_OF_FREE_MEMORY / _BUFFERS
    own_bytes = int(free / world.size if world.device.shares_host_memory else free)
    return min(map(int, world.exchange(str(own_bytes))))
