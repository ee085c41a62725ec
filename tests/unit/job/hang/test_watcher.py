"""Messages and actions of the watcher, by a made-up clock; this process plays the rank."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.procfs import boot_id, pid_namespace, stat_of
from ascendtune.core.rundir import RunDir
from ascendtune.job.hang import watcher as module
from ascendtune.job.hang.watcher import StopMethods, Watcher, has_hung

pytestmark = pytest.mark.long


class Scene:
    """A run of one rank, a clock, and what was said and done."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = RunDir(directory / "run")
        self.run.create("", {}, {})
        self.run.begin_attempt({})
        self.now = 1000.0
        self.said: list[str] = []
        self.done: list[Any] = []
        for name in ("say", "warn"):
            monkeypatch.setattr(module, name, self.said.append)
        self.ways = StopMethods(self.done.append, lambda: self.done.append("kill"), patience_seconds=10)

    def watcher(self, on_hang: Any = "warn") -> Watcher:
        return Watcher(self.run.path, on_hang, self.ways, clock=lambda: self.now)

    def beat(self, step: int, phase: str = "forward") -> None:
        stat = stat_of(os.getpid())
        assert stat is not None
        beat = {
            "phase": phase, "step": step, "monotonic": self.now, "attempt": 1,
            "pid": stat.pid, "start_ticks": stat.start_ticks, "host": socket.gethostname(),
            "boot_id": boot_id(), "pid_namespace": pid_namespace(),
        }  # fmt: skip
        (self.run.heartbeats / "rank_0.json").write_text(json.dumps(beat))

    def pass_time(self, watcher: Watcher, seconds: float, *, from_step: int | None = None) -> None:
        """Let it look every two seconds, while a step takes two, or while nothing happens."""
        for number in range(int(seconds / 2)):
            self.now += 2
            if from_step is not None:
                self.beat(from_step + number)
            watcher.look()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_a_hang_is_told_once_and_so_is_its_end(scene: Scene) -> None:
    watcher = scene.watcher()
    scene.pass_time(watcher, 200, from_step=1)
    assert scene.said == []
    scene.pass_time(watcher, 600)
    assert len(scene.said) == 1
    assert scene.said[0].startswith(
        "the run hangs: no heartbeat for 2:02, where a step takes 2 s\n  rank 0: forward of"
    )
    scene.pass_time(watcher, 200, from_step=101)
    assert scene.said[1:] == ["the run continues, after 10:02 without a heartbeat"]
    scene.pass_time(watcher, 200)
    assert len(scene.said) == 3 and "the run hangs" in scene.said[2]
    watcher.close()
    assert scene.done == [] and not has_hung(scene.run.path)


def test_time_asleep_does_not_count_as_a_hang(scene: Scene) -> None:
    watcher = scene.watcher("stop")
    scene.pass_time(watcher, 200, from_step=1)
    scene.now += 5000
    scene.pass_time(watcher, 100)
    assert scene.said == [] and scene.done == []
    scene.pass_time(watcher, 40)
    assert "the run hangs" in scene.said[0], "two minutes after it woke up it is none of sleep's doing"


def test_workers_are_asked_twice_and_then_killed(scene: Scene) -> None:
    watcher = scene.watcher("stop")
    scene.pass_time(watcher, 200, from_step=1)
    scene.pass_time(watcher, 126)
    assert scene.done == [signal.SIGINT] and "on_hang: stop: ending all ranks, within 20 s" in scene.said
    scene.pass_time(watcher, 10)
    assert scene.done == [signal.SIGINT, signal.SIGTERM]
    scene.pass_time(watcher, 30)
    assert scene.done == [signal.SIGINT, signal.SIGTERM, "kill"]
    assert not has_hung(scene.run.path)
    watcher.close()
    cause = scene.run.read()["exit_cause"]
    assert has_hung(scene.run.path) and cause["exit_code"] == 1 and cause["kind"] == "hang"
    assert cause["what"] == "the run hung in step 100: forward" and str(scene.run.logs) in cause["remedy"]


def test_a_host_that_knows_no_odd_rank_leaves_the_cause_of_one_that_does(scene: Scene) -> None:
    watcher = scene.watcher("stop")
    scene.pass_time(watcher, 200, from_step=1)
    scene.pass_time(watcher, 126)
    known = {"what": "rank 3 of node2 is stopped", "kind": "hang", "exit_code": 1, "odd_ranks": [3]}
    scene.run.end_attempt("failed", known)
    watcher.close()
    assert scene.run.read()["exit_cause"] == known


def test_a_host_replaces_a_cause_that_names_no_odd_rank(scene: Scene) -> None:
    watcher = scene.watcher("stop")
    scene.pass_time(watcher, 200, from_step=1)
    scene.pass_time(watcher, 126)
    scene.run.end_attempt("failed", {"what": "a rank was lost", "exit_code": 1, "rank": 0})
    watcher.close()
    assert scene.run.read()["exit_cause"]["what"] == "the run hung in step 100: forward"


def test_stacks_that_cannot_be_written_do_not_hide_the_hang(scene: Scene) -> None:
    scene.run.logs.rmdir()
    scene.run.logs.write_text("")
    watcher = scene.watcher()
    scene.pass_time(watcher, 200, from_step=1)
    scene.pass_time(watcher, 200)
    assert "the stacks could not be taken" in scene.said[0] and "the run hangs" in scene.said[1]


def test_a_program_without_a_heartbeat_is_left_alone(scene: Scene) -> None:
    watcher = scene.watcher("stop")
    scene.pass_time(watcher, 10_000)
    assert scene.said == [] and scene.done == []
