"""`ascendtune profile`: what is given to it, and changes that it tries."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.check.profile.traces import op, step, write

from ascendtune.check.profile.advice_entry import Advice
from ascendtune.check.profile.profile import RankProfile, read_profile
from ascendtune.cli.child_training import TrainingInterrupted, end_training, run_started_by
from ascendtune.cli.profile import profile
from ascendtune.cli.profile_trial import trials_as_text, try_changes
from ascendtune.core.errors import AscendtuneError, CheckFailed
from ascendtune.core.process import Child
from ascendtune.core.rundir import RunDir


def rank(directory: Path, microseconds: float, tokens: float) -> RankProfile:
    directory.mkdir(exist_ok=True)
    write(directory / "rank_0.trace.json.gz", [step(1, 0, microseconds), op("aten::mm", 0, 10)])
    (directory / "rank_0.json").write_text(json.dumps({"tokens_per_step": tokens}))
    (first,) = read_profile(directory)
    return first


def test_changes_that_keys_make_are_measured_per_token(tmp_path: Path) -> None:
    first = rank(tmp_path / "first", 1000, tokens=100)
    tried: list[tuple[list[str], str]] = []

    def record(words: list[str], ending: str) -> Path:
        tried.append((words, ending))
        if ending == "fails":
            raise CheckFailed("no", code="profile-failed", remedy="look")
        # Twice the tokens in one and a half times the time.
        return rank(tmp_path / ending, 1500, tokens=200).path.parent

    advice = [
        Advice("no-key", "", "", 5e-4),
        Advice("larger", "", "", 3e-4, keys={"batch.accumulate": 2}),
        Advice("fails", "", "", 1e-4, keys={"memory.gradient_checkpointing": False}),
        Advice("third", "", "", 1e-4, keys={"kernel": "auto"}),
        Advice("fourth", "", "", 1e-4, keys={"track.every_steps": 10}),
    ]
    trials = try_changes(advice, first, record)
    assert tried == [
        (["batch.accumulate=2"], "larger"),
        (["memory.gradient_checkpointing=false"], "fails"),
        (['kernel="auto"'], "third"),
    ]
    assert [each.code for each in trials] == ["larger", "fails", "third"]
    assert trials[0].gain == pytest.approx(0.25) and trials[0].expected_gain == pytest.approx(0.3)
    assert trials[1].gain is None
    text = trials_as_text(trials, 100)
    assert "-25.0 %" in text and "could not be trained" in text


@pytest.mark.parametrize(("steps", "said"), [(None, "5-8"), ("2-3", "2-3")])
def test_the_training_and_its_steps_are_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], steps: str | None, said: str
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: small\nmodel: {path: m}\ndata: {train: d.json}\n")
    words: list[str] = []

    def train_briefly(_recipe: Path, overrides: list[str], **_: Any) -> tuple[int, None]:
        words.extend(overrides)
        return 3, None

    monkeypatch.setattr("ascendtune.cli.child_training.train_briefly", train_briefly)
    with pytest.raises(AscendtuneError) as caught:
        profile(recipe, steps=steps)
    assert caught.value.code == "profile-failed" and {f"profile.steps={said}", "track.send_to=[]"} <= {*words}
    assert f"training the first steps of small, to profile steps {said}" in capfd.readouterr().err


@pytest.mark.parametrize(
    "options", [{"tries": True}, {"steps": "3"}, {"overrides": ["optim.max_steps=3"]}, {"devices": 2}, {"ranks": "0"}]
)
def test_options_of_recording_are_refused_for_a_trace(tmp_path: Path, options: dict[str, Any]) -> None:
    trace = write(tmp_path / "trace.json", [op("aten::mm", 0, 10)])
    with pytest.raises(AscendtuneError) as caught:
        profile(trace, **options)
    assert caught.value.code == "conflicting-options"


def test_a_directory_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AscendtuneError) as caught:
        profile(tmp_path)
    assert caught.value.code == "no-profile"


def test_a_trace_is_shown_as_json_beside_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (write(tmp_path / name, [op("aten::mm", 0, 10)]) for name in ("one.json", "other.json.gz"))
    profile(one, against=other, report=tmp_path / "page.html", as_json=True)
    content = json.loads(capsys.readouterr().out)
    assert content["ranks"][0]["compute_seconds"] == {"matmul": pytest.approx(1e-5)}
    assert content["against"]["now"]["parts_seconds"] == content["against"]["before"]["parts_seconds"]
    assert (tmp_path / "page.html").is_file()


def test_the_run_of_a_start_is_told_from_others_of_its_name(tmp_path: Path) -> None:
    starts = [(11, "elsewhere"), (11, socket.gethostname()), (12, socket.gethostname())]
    for number, (pid, host) in enumerate(starts):
        RunDir(tmp_path / f"run-{number}").create("", {}, {"started_by": pid, "host": host})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    records = sorted(tmp_path.glob("*/run.json"))
    assert run_started_by(11, records) == tmp_path / "run-1"
    assert run_started_by(12, records) == tmp_path / "run-2"
    assert run_started_by(13, records) is None


@pytest.mark.parametrize(
    ("has_trace", "said"),
    [(True, "shows the steps that were profiled"), (False, "stopped: no step was profiled; the same command begins")],
)
def test_ctrl_c_says_what_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, has_trace: bool, said: str
) -> None:
    run = tmp_path / "small-profile"
    (run / "profile").mkdir(parents=True)
    if has_trace:
        (run / "profile" / "rank_0.trace.json.gz").touch()

    def train_briefly(*_: Any, **__: Any) -> tuple[int, Path]:
        raise TrainingInterrupted(run)

    monkeypatch.setattr("ascendtune.cli.child_training.train_briefly", train_briefly)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: small\nmodel: {path: model}\ndata: {train: rows.json}\n")
    with pytest.raises(KeyboardInterrupt):
        profile(recipe)
    shown = capsys.readouterr().err
    assert said in shown and (str(run) in shown) == has_trace


def test_ctrl_c_while_a_trace_is_read_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(_: Path) -> list[RankProfile]:
        raise KeyboardInterrupt

    monkeypatch.setattr("ascendtune.check.profile.profile.read_profile", read)
    trace = write(tmp_path / "trace.json", [op("aten::mm", 0, 10)])
    with pytest.raises(KeyboardInterrupt):
        profile(trace)
    assert f"stopped; `ascendtune profile {trace}`" in capsys.readouterr().err


def test_more_interrupts_do_not_leave_a_training_behind(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"""
import pathlib, signal, time
signal.signal(signal.SIGINT, lambda *_: None)
pathlib.Path({str(ready)!r}).touch()
time.sleep(60)
"""
    child = Child([sys.executable, "-c", code], os.environ)
    while not ready.exists():
        time.sleep(0.01)
    again = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    # What ends it is the last signal, of which no other is left.
    stop = threading.Timer(0.5, child.signal, (signal.SIGKILL,))
    again.start()
    stop.start()
    end_training(child)
    assert child.wait(0) is not None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_empty_file_is_a_damaged_trace_and_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "trace.json").touch()
    with pytest.raises(AscendtuneError) as caught:
        profile(tmp_path / "trace.json")
    assert caught.value.code == "invalid-trace"


def test_a_name_of_nothing_is_told_as_missing(tmp_path: Path) -> None:
    for name in ("missing", "missing.yaml", "missing.json", "missing.json.gz", "missing.db"):
        with pytest.raises(AscendtuneError) as caught:
            profile(tmp_path / name)
        assert caught.value.code == "path-missing"
