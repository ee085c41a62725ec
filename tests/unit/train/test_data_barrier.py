"""A host that prepares its data for hours keeps the others waiting, and one that is lost does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch.distributed as dist

from ascendtune.core.errors import MachineError
from ascendtune.train import data_barrier
from ascendtune.train.data_barrier import DataBarrier


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    lines = list[str]()
    monkeypatch.setattr(data_barrier, "say", lines.append)
    for name, seconds in {"SIGN_EVERY": 0.02, "LOOK_EVERY": 0.01, "SILENT": 0.4, "TELL_AFTER": 0, "START": 1}.items():
        monkeypatch.setattr(data_barrier, f"_{name}_SECONDS", seconds)
    yield lines


def nothing() -> None:
    pass


@pytest.mark.parametrize("slow", [0, 1])
def test_ranks_wait_for_one_that_works_longer_than_a_lost_rank_is_waited_for(slow: int, said: list[str]) -> None:
    store, over, pulses = dist.HashStore(), threading.Event(), list[int]()
    ranks = [DataBarrier(store, rank, 3) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        waiting: list[Future[None]] = [
            pool.submit(each.wait, lambda: pulses.append(1)) for rank, each in enumerate(ranks) if rank != slow
        ]
        ranks[slow].show("tokenising training data", 41, 100)
        time.sleep(1.0)
        assert not any(each.done() for each in waiting) and len(pulses) > 10
        ranks[slow].wait(nothing)
        for future in waiting:
            future.result(5)
    over.set()
    for rank in ranks:
        rank.close()
    if slow:
        assert any("waiting for" in line and "is tokenising training data: 41%" in line for line in said)
    assert sum("not in the cache of this host" in line for line in said) == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_rank_that_gives_no_signs_any_more_is_lost(lost: int) -> None:
    store = dist.HashStore()
    ranks = [DataBarrier(store, rank, 2) for rank in range(2)]
    time.sleep(0.1)
    ranks[lost].close()
    with pytest.raises(MachineError, match=f"rank {lost} on .* no sign of life") as caught:
        ranks[1 - lost].wait(nothing)
    ranks[1 - lost].close()
    assert caught.value.code == "ranks-not-met"


def test_rank_that_never_came_is_named() -> None:
    rank = DataBarrier(dist.HashStore(), 0, 2)
    with pytest.raises(MachineError, match="rank 1 has given no sign"):
        rank.wait(nothing)
    rank.close()


def test_one_node_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    DataBarrier.of_this_job().wait(nothing)


def test_ranks_that_are_started_again_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's elastic restarts keep the store, with what the ranks before have left in it."""
    store = dist.HashStore()
    monkeypatch.setattr(dist, "rendezvous", lambda *_, **__: iter([(store, 0, 1)]))
    for name, value in {"GROUP_WORLD_SIZE": "2", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    main = DataBarrier(dist.PrefixStore("data_barrier_0", store), 0, 1)
    main.wait(nothing)
    main.close()
    first = DataBarrier.of_this_job()
    first.wait(nothing)
    first.close()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = DataBarrier.of_this_job()
    with pytest.raises(MachineError, match="rank 0 has given no sign"):
        again.wait(nothing)
    again.close()
