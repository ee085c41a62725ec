"""`comm test` on one rank: every collective with every dtype, compared element by element."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from ascendtune.check.comm.call import group_of, prepare
from ascendtune.check.comm.collective import BARRIER, COLLECTIVES, modulus
from ascendtune.check.comm.world import World

_COUNTS = (1021, 131_101)
"""Elements per rank, few and many: libraries use different algorithms. Primes, which no number of ranks divides."""
_SHOWN = 2
_LATE_SECONDS = 0.02
_REFUSAL = re.compile(r"type|not (yet )?(supported|implemented)|unsupported|unconvertible", re.IGNORECASE)
"""Errors of gloo ("Invalid scalar type"), NCCL ("Unconvertible NCCL type") and HCCL ("Unsupported data type") for
unsupported dtypes. They are raised before anything is sent, so the next dtype can be tested."""


def run_trials(world: World, work: dict[str, Any]) -> None:
    """Write a note {"cell": …} for each of `work["collectives"]` with each of `work["dtypes"]`."""
    world.notes.write({"backend": world.device.collective_backend})
    for name in work["collectives"]:
        if name == BARRIER:
            world.begin(BARRIER)
            world.notes.write({"cell": {"collective": BARRIER, "dtype": None, "missed": _ranks_not_awaited(world)}})
            continue
        for dtype in work["dtypes"]:
            world.notes.write({"cell": {"collective": name, "dtype": dtype, **_cell(world, name, dtype)}})


def _cell(world: World, name: str, dtype: str) -> dict[str, Any]:
    """{"untried": why}, {"refused": message}, or {"parts": …} and, if every rank is wrong, {"isolated": …}."""
    collective = COLLECTIVES[name]
    value_count = modulus(dtype, world.size if collective.reduces else 1)
    if dtype == "bfloat16" and not world.device.computes_bf16:
        return {"untried": "the chip does not support bf16"}
    if dtype.startswith("float8") and not world.device.supports_fp8:
        return {"untried": "the chip does not support 8-bit floats"}
    if value_count is None:
        return {"untried": f"sums over {world.size} ranks are not exact"}
    world.begin(f"{name} of {dtype}")
    everyone = tuple(range(world.size))
    try:
        cell = _tried(world, name, dtype, value_count, everyone, None)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        if not _REFUSAL.search(str(error)):
            raise
        cell = {"refused": str(error).strip().splitlines()[0][:200]}
    is_wrong = any(part["wrong"] for part in cell.get("parts", ()))
    answers = world.exchange("wrong" if is_wrong else "right")
    if collective.reduces and set(answers) == {"wrong"}:
        cell["isolated"] = [_isolated(world, name, dtype, value_count, group) for group in _small_groups(world.size)]
    return cell


def _tried(
    world: World, name: str, dtype: str, value_count: int, ranks: tuple[int, ...], group: dist.ProcessGroup | None
) -> dict[str, Any]:
    parts = []
    for count in _COUNTS:
        setting = group_of(world, count, getattr(torch, dtype), value_count)
        call = prepare(name, replace(setting, ranks=ranks, group=group, roots=ranks))
        call.fill()
        call.run()
        world.notes.write({"started": count})
        world.device.synchronize()
        parts += [{"elements": count, **part} for part in call.compare(_SHOWN)]
    return {"parts": parts}


def _small_groups(size: int) -> Iterable[tuple[int, ...]]:
    """Pairs of neighbours: a faulty rank makes two groups wrong, a faulty link one. For two ranks: each rank alone."""
    return [(rank, (rank + 1) % size) for rank in range(size)] if size > 2 else [(0,), (1,)]


def _isolated(world: World, name: str, dtype: str, value_count: int, members: tuple[int, ...]) -> dict[str, Any]:
    """Repeat the collective in a small group, because a sum that is wrong everywhere does not identify the rank."""
    members = tuple(sorted(members))
    group = dist.new_group(list(members))
    wrong = 0
    if world.rank in members:
        result = _tried(world, name, dtype, value_count, members, group)
        wrong = sum(part["wrong"] for part in result["parts"])
    wrongs = world.exchange(str(wrong))
    if world.rank in members:
        dist.destroy_process_group(group)
    return {"group": list(members), "wrong": sum(map(int, wrongs))}


def _ranks_not_awaited(world: World) -> list[int]:
    """The ranks that a barrier did not wait for: each arrives late once, and sets a key in the store on arrival."""
    missed: list[int] = []
    for late in range(world.size):
        key = f"barrier/{late}"
        if world.rank == late:
            time.sleep(_LATE_SECONDS)
            world.store.set(key, "here")
        dist.barrier(device_ids=None if world.device.shares_host_memory else [world.device.index])
        world.device.synchronize()
        if not world.store.check([key]):
            missed.append(late)
    return missed
