from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.procfs import Stat, boot_id, pid_namespace, stat_of
from ascendtune.job.hang.heartbeat import STARTUP, beats_of, newest_beats
from ascendtune.train.phases import Phases


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "heartbeat").mkdir()
    return tmp_path


def _write(run: Path, rank: int, **changes: Any) -> None:
    stat = stat_of(os.getpid())
    assert stat is not None
    whole = {
        "phase": "data", "step": 3, "monotonic": 5.0, "attempt": 1,
        "pid": stat.pid, "start_ticks": stat.start_ticks, "host": socket.gethostname(),
            "boot_id": boot_id(), "pid_namespace": pid_namespace(),
    }  # fmt: skip
    (run / "heartbeat" / f"rank_{rank}.json").write_text(json.dumps({**whole, **changes}))


def test_heartbeat_is_read_as_it_was_written(run: Path) -> None:
    phases = Phases(run / "heartbeat" / "rank_3.json", attempt=2)
    (beat,) = newest_beats(run)
    assert (beat.rank, beat.phase, beat.step, beat.attempt, beat.pid) == (3, "preparation", 0, 2, os.getpid())
    phases.step = 1_000_000
    with phases.phase("evaluation"):
        (beat,) = newest_beats(run)
    assert (beat.phase, beat.step) == ("evaluation", 1_000_000)
    phases.step = 7
    with phases.phase("data"):
        (shorter,) = newest_beats(run)
    assert (shorter.phase, shorter.step) == ("data", 7) and shorter.monotonic >= beat.monotonic
    process = shorter.process()
    assert process is not None and process.pid == os.getpid()
    phases.close()


def test_a_phase_goes_on_after_a_phase_inside_it_and_is_not_charged_for_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, 1.0, 11.0, 13.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    phases = Phases(run / "heartbeat" / "rank_0.json")
    with phases.phase("optimizer"):
        with phases.phase("collective"):
            (inside,) = newest_beats(run)
        (after,) = newest_beats(run)
    phases.close()
    assert (inside.phase, after.phase) == ("collective", "optimizer")
    assert phases.take() == {"collective": 10.0, "optimizer": 3.0}


def test_a_pulse_renews_the_sign_of_life_and_nothing_else(run: Path) -> None:
    phases = Phases(run / "heartbeat" / "rank_0.json")
    with phases.phase("evaluation"):
        (before,) = newest_beats(run)
        phases.write_heartbeat()
        (after,) = newest_beats(run)
    assert after.monotonic > before.monotonic and after.phase == "evaluation"
    phases.close()
    phases.write_heartbeat()
    (closed,) = newest_beats(run)
    assert closed.monotonic == after.monotonic, "a closed file is not written"


def test_ranks_of_an_earlier_larger_attempt_are_ignored(run: Path) -> None:
    _write(run, 0, attempt=2)
    _write(run, 1, attempt=1)
    _write(run, 10, attempt=2)
    assert [beat.rank for beat in newest_beats(run)] == [0, 10]


def test_a_process_without_a_sign_of_life_has_been_starting_since_it_began(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = stat_of(os.getpid())
    assert this is not None
    monkeypatch.setattr(Stat, "age_seconds", 50.0)
    # What an earlier attempt left, by ranks that are gone.
    _write(run, 0, pid=1)
    _write(run, 1, pid=1)
    _write(run, 2, host="elsewhere", boot_id="of another machine")
    before = time.monotonic()
    (beat,) = beats_of(run, {0: this})
    assert (beat.rank, beat.phase, beat.place) == (0, STARTUP, "startup, before the first step")
    assert beat.process() is not None and before <= beat.monotonic + 50 <= time.monotonic()
    _write(run, 1, attempt=2)
    assert [(each.rank, each.phase, each.attempt) for each in beats_of(run, {0: this, 1: this})] == [(1, "data", 2)]
    (run / "heartbeat").rename(run / "elsewhere")
    assert [each.place for each in beats_of(run, {0: this})] == ["running"], "a program that is not ours"


def test_damaged_and_foreign_files_are_ignored(run: Path) -> None:
    _write(run, 0)
    (run / "heartbeat" / "rank_1.json").write_text('{"phase": "da')
    (run / "heartbeat" / "rank_2.json").write_text('{"phase": "data", "step": 1, "monotonic": 1, "pid": 1}')
    (run / "heartbeat" / "rank_x.json").write_text("[]")
    assert [beat.rank for beat in newest_beats(run)] == [0]
    assert newest_beats(run / "nothing") == []


def test_a_pid_that_another_process_has_now_is_not_the_rank(run: Path) -> None:
    _write(run, 0, start_ticks=1)
    _write(run, 1, host="elsewhere", boot_id="of another machine")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
        _write(run, 2, pid=ended.pid)
    assert [beat.process() for beat in newest_beats(run)] == [None, None, None]


def test_ranks_are_recognised_after_their_host_got_another_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(run, 0)
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    this = stat_of(os.getpid())
    assert this is not None
    (beat,) = beats_of(run, {0: this})
    assert (beat.phase, beat.step) == ("data", 3) and beat.process() == this


def test_the_same_pid_in_another_container_is_not_the_rank(run: Path) -> None:
    _write(run, 0, pid_namespace="pid:[1]")
    (beat,) = newest_beats(run)
    assert beat.process() is None
