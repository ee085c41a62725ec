"""The duration of a measurement, and its watchdog."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from ascendtune.check.comm.notes import notes_path
from ascendtune.check.comm.timing import _samples, measure
from ascendtune.check.comm.world import World
from ascendtune.core.records import LineWriter
from ascendtune.machine.torch_backend.device import Device
from ascendtune.machine.torch_backend.find import open_device


@pytest.fixture
def device() -> Device:
    return open_device("cpu")


@pytest.fixture
def alone(device: Device, tmp_path: Path) -> Iterator[World]:
    world = World(0, 1, device, dist.HashStore(), LineWriter(notes_path(tmp_path, 0)), timedelta(seconds=4))
    yield world
    world.rest()


def test_ranks_that_wait_meanwhile_do_not_give_up(alone: World) -> None:
    assert _samples(alone, 1000, 0.1) == 20, "half of the time in which a rank is waited for"
    alone.limit = timedelta(seconds=120)
    assert _samples(alone, 1000, 0.1) == 200
    assert _samples(alone, 5, 0.1) == 5 and _samples(alone, 5, 100.0) == 3


def test_every_answer_of_the_device_is_a_sign_of_life(device: Device) -> None:
    done: list[str] = []
    seconds = measure(lambda: done.append("call"), device, 1 << 30, lambda _: 2, lambda: done.append("restart"))
    assert len(seconds) == 2
    assert done == ["call", "restart", *["call"] * 4, *["restart", "call"] * 2]
