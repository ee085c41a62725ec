"""`comm bench` on one rank: how long collectives of growing size take, and messages between two ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import permutations
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from ascendtune.check.comm.call import Setting, prepare
from ascendtune.check.comm.collective import COLLECTIVES, modulus
from ascendtune.check.comm.world import World
from ascendtune.machine.torch_backend.device import Device

_SHARE_OF_FREE_MEMORY = 0.5
_BUFFERS = 2
_WARM_UP = 4
"""Calls after the very first, which connects and allocates."""
_LONGEST_SECONDS, _FEWEST_SAMPLES = 20.0, 3
"""For the samples of one size."""
_BATCH_BYTES, _LONGEST_BATCH = 64 << 20, 16


def time_sizes(world: World, work: dict[str, Any]) -> None:
    """Note a {"row": …} for each size from `work["min_bytes"]` to `work["max_bytes"]`, by factors of two."""
    name, dtype = work["collective"], getattr(torch, work["dtype"])
    collective = COLLECTIVES[name]
    fits = modulus(work["dtype"], world.size if collective.reduces else 1)
    most = _most_bytes(world)
    world.notes.write({"backend": world.device.collective_backend, "most_bytes": most})
    first, last = work["min_bytes"], min(work["max_bytes"], most)
    for count, size in collective.sizes(dtype.itemsize, world.size, first, last):
        world.begin(f"{name} of {size} bytes")
        everyone = tuple(range(world.size))
        setting = Setting(
            rank=world.rank,
            ranks=everyone,
            count=count,
            dtype=dtype,
            modulus=fits or 1,
            place=world.device.torch_device,
            batches_messages=world.device.batches_messages,
        )
        call = prepare(name, setting)
        call.fill()
        call.run()
        world.device.synchronize()
        wrong = sum(part["wrong"] for part in call.compare()) if fits else None
        call.clear()
        samples = partial(_samples, world, work["iterations"])
        seconds = measure(call.run, world.device, size, samples, world.pulse)
        row = {"bytes": size, "count": count, "samples": len(seconds), "seconds": median(seconds), "wrong": wrong}
        world.notes.write({"row": row})
        del call


def time_pairs(world: World, work: dict[str, Any]) -> None:
    """Note a {"pair": …} for each message of `work["bytes"]` from one rank to another that this rank takes part in."""
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
            seconds = measure(send, world.device, size, samples, world.pulse)
            world.notes.write({"pair": {"from": sender, "to": receiver, "bytes": size, "seconds": median(seconds)}})


def measure(
    run: Callable[[], object],
    device: Device,
    size_bytes: int,
    samples: Callable[[float], int],
    pulse: Callable[[], object] = lambda: None,
) -> list[float]:
    """Seconds per call, in several samples. Every rank must do the same number of calls.

    Small messages are timed many in a row, as a program sends them: waiting for the device after each would cost more
    than the message.

    Args:
        samples: how many, asked after the warm-up with the seconds that one sample may take.
        pulse: called whenever the device has answered, outside of what is timed.
    """
    calls = max(1, min(_LONGEST_BATCH, _BATCH_BYTES // size_bytes))
    run()
    device.synchronize()
    pulse()
    began = time.perf_counter()
    for _ in range(_WARM_UP):
        run()
    device.synchronize()
    seconds = []
    for _ in range(samples(calls * (time.perf_counter() - began) / _WARM_UP)):
        pulse()
        began = time.perf_counter()
        for _ in range(calls):
            run()
        device.synchronize()
        seconds.append((time.perf_counter() - began) / calls)
    return seconds


def _samples(world: World, wanted: int, sample_seconds: float) -> int:
    """As many as were asked for, fewer where they would take too long; the same on every rank."""
    # Ranks that have no part in it wait for the others meanwhile.
    longest = min(_LONGEST_SECONDS, world.limit.total_seconds() / 2)
    affordable = int(longest / sample_seconds) if sample_seconds else wanted
    return min(map(int, world.exchange(str(min(wanted, max(_FEWEST_SAMPLES, affordable))))))


def _one_way(world: World, message: torch.Tensor, sender: int, receiver: int) -> Callable[[], object]:
    if world.rank == sender:
        return lambda: dist.send(message, receiver)
    return lambda: dist.recv(message, sender)


def _most_bytes(world: World) -> int:
    """The largest buffer with which all buffers of all ranks take half of what is free; the same on every rank."""
    return min(map(int, world.exchange(str(_room(world)))))


def _room(world: World) -> int:
    free = world.device.memory_free_bytes() * _SHARE_OF_FREE_MEMORY / _BUFFERS
    return int(free / world.size if world.device.shares_host_memory else free)
