"""The product's worker, on a rank where something really goes wrong: FAULT says what, FAULTY_RANK where.

`faulty_worker.py MODULE ARGUMENT…`, with the worker's module and what it is given.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from ascendtune.machine.torch_backend.cpu import CpuDevice

FAULT, IS_FAULTY = os.environ["FAULT"], os.environ["RANK"] == os.environ["FAULTY_RANK"]
_all_reduce, _gather, _send = dist.all_reduce, dist.all_gather_single, dist.send
_backward = torch.Tensor.backward
_steps = 0


def _adds_one_to_what_it_sends(tensor: Any, *rest: Any, **named: Any) -> object:
    tensor.add_(1)
    return _all_reduce(tensor, *rest, **named)


def _spoils_its_sum(tensor: Any, *rest: Any, **named: Any) -> None:
    _all_reduce(tensor, *rest, **named)
    tensor[7] += 1


def _sends_an_old_buffer(received: Any, sent: Any, *rest: Any, **named: Any) -> object:
    return _gather(received, sent * 0, *rest, **named)


def _is_slow_to_the_next(tensor: Any, receiver: int) -> None:
    if receiver == int(os.environ["RANK"]) + 1:
        time.sleep(0.05)
    _send(tensor, receiver)


def _computes_slowly(*rest: Any, **named: Any) -> None:
    time.sleep(0.15)
    _backward(*rest, **named)


def _computes_no_more(*rest: Any, **named: Any) -> None:
    # Trials of a kernel call `backward`, too; how many there are depends on what an earlier run has noted.
    if _steps == 8:
        time.sleep(600)
    _backward(*rest, **named)


def _count_step(*_: Any) -> None:
    global _steps
    _steps += 1


def _hangs(*rest: Any, **named: Any) -> None:
    time.sleep(600)


def _dies(*rest: Any, **named: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raises(*rest: Any, **named: Any) -> None:
    raise RuntimeError("EL0004: HBM of the chip has failed")


_INSTEAD: dict[str, tuple[Any, str, Any]] = {
    "adds one": (dist, "all_reduce", _adds_one_to_what_it_sends),
    "spoils its sum": (dist, "all_reduce", _spoils_its_sum),
    "sends an old buffer": (dist, "all_gather_single", _sends_an_old_buffer),
    "is slow to the next": (dist, "send", _is_slow_to_the_next),
    "computes slowly": (torch.Tensor, "backward", _computes_slowly),
    "computes no more": (torch.Tensor, "backward", _computes_no_more),
    "hangs": (dist, "all_gather_single", _hangs),
    "dies": (dist, "all_gather_single", _dies),
    "raises": (dist, "all_gather_single", _raises),
    "has little memory": (CpuDevice, "memory_free_bytes", lambda self: 256 << 10),
}
if IS_FAULTY and FAULT in _INSTEAD:
    setattr(*_INSTEAD[FAULT])
    register_optimizer_step_post_hook(_count_step)
if IS_FAULTY and FAULT == "never starts":
    time.sleep(600)

# It takes the functions as they are now.
worker: Any = import_module(sys.argv[1])

if FAULT == "comes late" and IS_FAULTY:
    _begin = worker.World.begin

    def _late(world: Any, place: str) -> None:
        if place.startswith("broadcast"):
            time.sleep(600)
        _begin(world, place)

    worker.World.begin = _late

os._exit(worker.main(*sys.argv[2:]))
