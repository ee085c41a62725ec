"""A host that works for hours keeps the others waiting, and one that is lost does not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from ascendtune.core.errors import MachineError
from ascendtune.train import patient_barrier
from ascendtune.train.patient_barrier import PatientBarrier
from ascendtune.train.phases import Phases


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    lines = list[str]()
    monkeypatch.setattr(patient_barrier, "say", lines.append)
    for name, seconds in {"HEARTBEAT": 0.02, "POLL": 0.01, "LOST": 0.4, "LOG_AFTER": 0, "START": 1}.items():
        monkeypatch.setattr(patient_barrier, f"_{name}_SECONDS", seconds)
    yield lines


def barriers(store: dist.Store, ranks: int) -> list[PatientBarrier]:
    return [PatientBarrier(store, rank, ranks, Phases(None)) for rank in range(ranks)]


def meet(barrier: PatientBarrier) -> None:
    with barrier.work("prepares its data"):
        pass


@pytest.mark.parametrize("slow", [0, 1])
def test_ranks_wait_for_one_that_works_longer_than_a_lost_rank_is_waited_for(slow: int, said: list[str]) -> None:
    ranks = barriers(dist.HashStore(), 3)
    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            with ranks[slow].work("prepares its data"):
                waiting: list[Future[None]] = [
                    pool.submit(meet, each) for rank, each in enumerate(ranks) if rank != slow
                ]
                ranks[slow].show("tokenising training data", 41, 100)
                time.sleep(1.0)
                assert not any(each.done() for each in waiting)
            for future in waiting:
                future.result(5)
    if slow:
        assert any("waiting for" in line and "is tokenising training data: 41%" in line for line in said)
    assert sum("not in the cache of this host" in line for line in said) == 1


def test_rank_that_waits_has_heartbeats_and_goes_back_to_its_phase(tmp_path: Path) -> None:
    ranks, phases = barriers(dist.HashStore(), 2), Phases(tmp_path / "rank_0.json")
    ranks[0] = PatientBarrier(ranks[0]._store, 0, 2, phases)
    phases.enter("loading")
    with ThreadPoolExecutor(1) as pool, ranks[1].work("loads the model"):
        waiting = pool.submit(meet, ranks[0])
        beats, deadline = set[float](), time.monotonic() + 20
        while len(beats) < 3 and time.monotonic() < deadline:
            beat = json.loads((tmp_path / "rank_0.json").read_text())
            beats |= {beat["monotonic"]} if beat["phase"] == "rendezvous" else set()
            time.sleep(0.01)
    waiting.result(5)
    assert len(beats) == 3
    assert phases.current == "loading"
    phases.close()


class _Gone(dist.Store):
    """As the store of a torchrun that was killed."""

    def set(self, key: str, value: str) -> None:
        raise dist.DistNetworkError("Connection reset by peer")

    add = set  # type: ignore[assignment]


def test_store_that_is_gone_ends_the_training_and_not_its_last_checkpoint() -> None:
    barrier, written = PatientBarrier(_Gone(), 0, 2, Phases(None)), []
    with pytest.raises(dist.DistNetworkError):
        meet(barrier)
    with barrier.for_thread("checkpoint").work("writes a checkpoint"):
        written.append("step_5")
    assert written == ["step_5"]
    with pytest.raises(RuntimeError, match="of the work"), barrier.for_thread("checkpoint").work("writes a checkpoint"):
        raise RuntimeError("of the work itself")


def test_thread_beside_the_training_waits_by_itself() -> None:
    ranks = barriers(dist.HashStore(), 2)
    with ThreadPoolExecutor(2) as pool, ranks[1].for_thread("checkpoint").work("writes a checkpoint"):
        writing = pool.submit(meet, ranks[0].for_thread("checkpoint"))
        for future in [pool.submit(meet, ranks[0])]:
            meet(ranks[1])
            future.result(5)
        assert not writing.done()
    writing.result(5)


@pytest.mark.parametrize("lost", [0, 1])
def test_rank_without_heartbeats_is_lost(lost: int) -> None:
    ranks = barriers(dist.HashStore(), 2)
    with pytest.raises(ZeroDivisionError), ranks[lost].work("loads the model"):
        raise ZeroDivisionError
    with pytest.raises(MachineError, match=f"rank {lost} on .* no heartbeat") as caught:
        meet(ranks[1 - lost])
    assert caught.value.code == "ranks-not-met"
    assert not any(each.name == "signs of life" for each in threading.enumerate())


def test_rank_that_never_came_is_named() -> None:
    with pytest.raises(MachineError, match="rank 1 has sent no heartbeat"):
        meet(barriers(dist.HashStore(), 2)[0])


def test_a_single_node_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    meet(PatientBarrier.of_this_job(Phases(None)))


def test_ranks_that_are_started_again_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's elastic restarts keep the store, with what the ranks before have left in it."""
    store = dist.HashStore()
    monkeypatch.setattr(dist, "rendezvous", lambda *_, **__: iter([(store, 0, 1)]))
    for name, value in {"GROUP_WORLD_SIZE": "2", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    meet(PatientBarrier(dist.PrefixStore("patient_barrier_0", store), 0, 1, Phases(None)))
    meet(PatientBarrier.of_this_job(Phases(None)))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(MachineError, match="rank 0 has sent no heartbeat"):
        meet(PatientBarrier.of_this_job(Phases(None)))
