"""The record of an attempt in run.json, and its preconditions."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascendtune.core import log
from ascendtune.core.errors import DataError, MachineError, RecipeError
from ascendtune.core.rundir import RunDir, State
from ascendtune.train import attempt
from ascendtune.train.attempt_end import note_end
from ascendtune.train.phases import Phases
from ascendtune.train.plan.finished_run import note_peak


def test_full_disk_names_the_step_that_the_same_command_resumes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(run.metrics))

    run = RunDir(tmp_path / "run")
    run.create("model: {path: m}\ndata: {train: rows}\n", {}, {})
    run.begin_attempt({})
    monkeypatch.setattr(attempt, "_train", fill)
    for step, remedy in (
        (None, "put the directory on another disk"),
        (40, "the same command then resumes from step 40"),
    ):
        if step:
            run.checkpoint(step).mkdir(parents=True)
        with pytest.raises(MachineError) as caught:
            attempt.train(run, run.read())
        assert caught.value.remedy.endswith(remedy)


@pytest.mark.parametrize(
    ("step", "after"), [(None, "starts over, as there is no checkpoint yet"), (4, "resumes from step 4")]
)
def test_stop_at_once_tells_what_the_same_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int | None, after: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run = RunDir(tmp_path / "run")
    run.create("model: {path: m}\ndata: {train: rows}\n", {}, {})
    run.begin_attempt({})
    if step:
        run.checkpoint(step).mkdir(parents=True)
    monkeypatch.setattr(attempt, "_train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        attempt.train(run, run.read())
    assert run.read()["exit_cause"]["remedy"] == f"run the same command again: it {after}"


@pytest.mark.parametrize(
    ("plan", "expected"), [({"expected_bytes": 5}, {"expected_bytes": 5, "measured_bytes": 7}), (None, None)]
)
def test_the_measured_peak_is_noted_beside_the_expected_one(tmp_path: Path, plan: Any, expected: Any) -> None:
    run = RunDir(tmp_path)
    run.create("", {}, {"plan": plan})
    device: Any = SimpleNamespace(memory_peak_bytes=lambda: 7)
    note_peak(run, plan, device)
    assert run.read()["plan"] == expected


@pytest.mark.parametrize("part", ["model_directory", "reference_directory"])
def test_a_host_without_a_model_is_told_as_that(tmp_path: Path, part: str) -> None:
    """Its tokenizer.json was missing, said the message, and was to be converted."""
    record = {"model_directory": str(tmp_path), "reference_directory": None, "adapters": []}
    attempt._require_models(record)
    with pytest.raises(RecipeError) as caught:
        attempt._require_models({**record, part: str(tmp_path / "absent")})
    assert caught.value.code == "model-missing-on-host" and caught.value.where == str(tmp_path / "absent")


@pytest.mark.parametrize("is_same", [True, False])
def test_a_host_without_the_tokens_makes_those_of_the_run_or_refuses(
    is_same: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another host may have another file under the same name: its ranks would train on other rows, unnoticed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    of_run, of_host = "a" * 32, ("a" if is_same else "b") * 32
    made = SimpleNamespace(fingerprint=of_host)
    monkeypatch.setattr(attempt, "prepare_data", lambda *_: made)
    recipe: Any = None
    if is_same:
        assert attempt._open_data(recipe, of_run, tmp_path, Phases(None), lambda *_: None) is made
        return
    with pytest.raises(DataError) as caught:
        attempt._open_data(recipe, of_run, tmp_path, Phases(None), lambda *_: None)
    assert caught.value.code == "data-differs-between-nodes"


def test_end_before_the_ranks_met_is_that_of_a_new_attempt(tmp_path: Path) -> None:
    """The one before, which was killed, has not ended then; and a job finds its own end by its process."""
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    run.begin_attempt({})
    before = run.read()
    note_end(run, before, KeyboardInterrupt(), rank=0)
    killed, ended = run.read()["attempts"]
    assert "ended" not in killed
    assert (ended["pid"], ended["state"], ended["exit_code"]) == (os.getpid(), "stopped", 130)
    # Another rank, which knows no more, changes nothing.
    noted = run.read()
    note_end(run, before, RuntimeError("later"), rank=1)
    assert run.read() == noted


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_failure_before_the_ranks_met_replaces_the_cause_of_the_attempt_before(tmp_path: Path, state: State) -> None:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    run.begin_attempt({})
    run.end_attempt(state, {"exit_code": 1, "what": "earlier"})
    note_end(run, run.read(), RuntimeError("now"), rank=1)
    record = run.read()
    assert record["state"] == "failed" and record["exit_cause"]["what"] == "RuntimeError: now"


def test_ctrl_c_before_a_finished_run_is_found_to_be_one_leaves_it_finished(tmp_path: Path) -> None:
    """An engine that starts its worker again imports torch first."""
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    run.begin_attempt({})
    run.end_attempt("finished")
    before = run.read()
    note_end(run, before, KeyboardInterrupt(), rank=0)
    assert run.read() == before


def test_disk_that_cannot_be_read_does_not_hide_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(run: RunDir) -> list[int]:
        raise OSError(errno.ESTALE, "Stale file handle")

    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    monkeypatch.setattr(RunDir, "checkpoint_steps", fail)
    log.set_up()
    note_end(run, run.read(), KeyboardInterrupt(), rank=0)
    assert "Stale file handle" in capsys.readouterr().err
