"""Records that the run directory keeps and drops."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core import rundir
from ascendtune.core.attempt_time import seconds_of_attempts, seconds_since
from ascendtune.core.errors import MachineError
from ascendtune.core.records import write_json
from ascendtune.core.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Seven recorded steps, evaluated after each second one."""
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    run.metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 8)))
    run.evaluations.write_text("".join(json.dumps({"step": step}) + "\n" for step in (2, 4, 6)))
    return run


def test_newest_records_are_read_whole_where_they_are_long(run: RunDir) -> None:
    assert [each["step"] for each in run.newest_metrics(3)] == [5, 6, 7]
    run.metrics.write_text("".join(json.dumps({"step": step, "of": "a" * 3000}) + "\n" for step in range(40)))
    steps = [each["step"] for each in run.newest_metrics(32)]
    assert 10 < len(steps) < 32 and steps == list(range(40))[-len(steps) :]
    run.metrics.write_text("")
    assert run.newest_metrics(2) == []


@pytest.mark.parametrize(
    ("step", "evaluated_step", "steps", "evaluations"),
    [
        (5, 4, [1, 2, 3, 4, 5], [2, 4]),
        # A checkpoint between a step and the evaluation after it.
        (4, 2, [1, 2, 3, 4], [2]),
        (7, 6, [1, 2, 3, 4, 5, 6, 7], [2, 4, 6]),
        (0, 0, [], []),
    ],
)
def test_records_after_the_checkpoint_are_dropped_and_no_others(
    run: RunDir, step: int, evaluated_step: int, steps: list[int], evaluations: list[int]
) -> None:
    run.drop_records_after(step, evaluated_step)
    assert [each["step"] for each in run.read_metrics()] == steps
    assert [each["step"] for each in run.read_evaluations()] == evaluations


def test_records_of_a_long_run_are_not_read_to_drop_the_last_ones(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred thousand of them took a gigabyte of memory, at each resume."""
    parsed, parse = list[Any](), rundir.parsed_record
    monkeypatch.setattr(rundir, "parsed_record", lambda line, where: parsed.append(line) or parse(line, where))
    run.metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 1001)) + '{"step": 10')
    run.drop_records_after(997, 6)
    assert [each["step"] for each in run.read_metrics()] == list(range(1, 998)) and len(parsed) == 5
    before = run.metrics.stat().st_ino
    run.drop_records_after(997, 6)
    assert run.metrics.stat().st_ino == before


def test_checkpoints_after_the_one_that_a_run_continues_from_are_removed(run: RunDir) -> None:
    for step in (2, 10, 9):
        run.checkpoint(step).mkdir(parents=True)
    (run.checkpoints / ".step_11.writing").mkdir()
    assert run.checkpoint_steps() == [2, 9, 10]
    run.remove_checkpoints_after(9)
    assert run.checkpoint_steps() == [2, 9]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("exit_cause", "died"), ("resolved", [1]), ("versions", "2.13"), ("data_hash", ["a"]), ("recipe_hash", 5),
        ("state", None), ("state", 5), ("state", ["finished"]), ("state", "x" * 100_000),
    ],
)  # fmt: skip
def test_record_with_a_field_of_another_kind_is_damaged(tmp_path: Path, key: str, value: object) -> None:
    run = RunDir(tmp_path / "run")
    run.create("name: a\n", {}, {"data_hash": "x", "exit_cause": None})
    run.read()
    run.run_json.write_text(json.dumps({**run.read(), key: value}))
    with pytest.raises(MachineError) as caught:
        run.read()
    assert caught.value.code == "record-damaged" and key in caught.value.what


def test_checkpoints_are_directories_named_as_they_are_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.create("", {}, {})
    for name in (
        "step_20",
        "step_3",
        "step_",
        "step_-1",
        "step_007",
        "step_\u00b2",
        "step_\u0661",
        "step_4 ",
        ".step_5",
    ):
        (run.checkpoints / name).mkdir()
    (run.checkpoints / "step_6").touch()
    assert run.checkpoint_steps() == [3, 20]
    assert all(run.checkpoint(step).is_dir() for step in run.checkpoint_steps())


def test_the_end_of_an_attempt_has_room_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.run_json.write_text(json.dumps({"state": "created", "attempts": []}))
    run.begin_attempt({})
    (reserved,) = (path for path in run.path.iterdir() if path != run.run_json)
    assert reserved.stat().st_blocks * 512 >= 1 << 17

    def write_where_room_is(path: Path, content: object) -> None:
        if reserved.exists():
            raise MachineError("the disk is full", code="disk-full", remedy="free space")
        write_json(path, content)

    monkeypatch.setattr(rundir, "write_json", write_where_room_is)
    run.end_attempt("failed", {"what": "the disk is full", "exit_code": 3})

    assert run.read()["state"] == "failed" and list(run.path.iterdir()) == [run.run_json]


@pytest.mark.parametrize("set_by_seconds", [-7200, 7200])
def test_an_attempt_takes_as_long_as_it_took_where_the_clock_was_set_meanwhile(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, set_by_seconds: float
) -> None:
    run.begin_attempt({})
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + set_by_seconds)
    run.end_attempt("finished")
    took = seconds_of_attempts(run.read()["attempts"])
    assert took is not None and 0 <= took < 600


def test_time_since_a_start_on_another_machine_is_unknown_where_the_clock_was_set_back() -> None:
    assert seconds_since({"monotonic": 5.0, "boot_id": "another", "started": time.time() + 60}) is None
    assert 60 <= (seconds_since({"monotonic": 5.0, "boot_id": "another", "started": time.time() - 60}) or 0) < 600


def test_room_is_kept_while_an_attempt_runs_alone(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.run_json.write_text(json.dumps({"state": "created", "attempts": []}))
    run.begin_attempt({})
    run.remove_unfinished()
    assert len(list(run.path.iterdir())) == 2
    # A kill after the end, before the room is given back.
    run.update(state="finished")
    run.remove_unfinished()
    assert list(run.path.iterdir()) == [run.run_json]


def test_new_attempt_forgets_why_the_run_had_finished(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    run.begin_attempt({})
    run.end_attempt("finished", ended_because="no improvement in 3 evaluations")
    run.begin_attempt({})
    run.end_attempt("failed")
    assert run.read()["state"] == "failed" and run.read()["ended_because"] is None
