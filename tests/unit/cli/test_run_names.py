"""Completions of the shell for the name of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ascendtune.check.align.training_record import read_training_record
from ascendtune.check.profile.profile import read_profile
from ascendtune.cli.run_names import complete_run, complete_weights, model_named, run_named, weights_named
from ascendtune.core.errors import InputError
from ascendtune.core.rundir import RunDir


def _run(name: bytes, state: str = "finished") -> None:
    directory = Path("runs", os.fsdecode(name))
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(
        json.dumps({"schema_version": 1, "state": state, "attempts": [], "name": "a", "exit_cause": None})
    )


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_runs_are_completed_with_their_states() -> None:
    _run(b"alpaca-qwen.2")
    _run("süß".encode())
    _run(b"other", "failed")
    assert sorted(complete_run("")) == [("alpaca-qwen.2", "finished"), ("other", "failed"), ("süß", "finished")]
    assert complete_run("alp") == [("alpaca-qwen.2", "finished")]


@pytest.mark.parametrize(
    "name", [b"a$(touch x)", b"a`id`", b"a;id", b"a b", b"a\nb", b"a\x1b[2J", b"a\xff", "a\u202e".encode()]
)
def test_name_that_a_shell_or_a_terminal_would_interpret_is_not_completed(name: bytes) -> None:
    _run(name)
    _run(b"b")
    assert complete_run("") == [("b", "finished")]


def test_state_that_is_not_a_word_is_not_shown_in_completion() -> None:
    _run(b"a", "$(touch x)\x1b[2J")
    assert complete_run("") == []


@pytest.mark.parametrize("typed", ["a@", "a@1@", "a@b@c", "nothing@1"])
def test_no_checkpoints_are_completed_of_what_is_not_a_run(typed: str) -> None:
    _run(b"a")
    assert complete_weights(typed) == []


def test_path_of_a_missing_run_is_not_looked_for_on_a_hub(tmp_path: Path) -> None:
    """`runs/qa` could be the id of a model, too."""
    with pytest.raises(InputError) as refused:
        weights_named("runs/alpaca")
    assert refused.value.code == "path-missing"
    _run(b"alpaca-qwen")
    with pytest.raises(InputError) as refused:
        weights_named("runs/alpaca-qwn")
    assert refused.value.remedy == "did you mean 'alpaca-qwen'?"
    (tmp_path / "Qwen/mine").mkdir(parents=True)
    assert weights_named("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    (tmp_path / "Qwen/mine/run.json").write_text("{}")
    with pytest.raises(InputError) as refused:
        weights_named("Qwen/Qwen3-8B")
    assert refused.value.remedy == "for a model on a hub give hf:Qwen/Qwen3-8B"
    assert weights_named("hf:Qwen/Qwen3-8B") == "hf:Qwen/Qwen3-8B"
    assert weights_named("runs/alpaca-qwen") == "runs/alpaca-qwen"


@pytest.mark.parametrize("typed", ["tri", "runs/tri", "trry"])
def test_a_misspelt_run_is_answered_with_the_similar_one(typed: str) -> None:
    _run(b"try")
    for command in (RunDir.open, lambda path: read_training_record(Path(path)), lambda path: read_profile(Path(path))):
        with pytest.raises(InputError) as caught:
            command(typed)
        assert caught.value.remedy == "did you mean 'runs/try'?"
    with pytest.raises(InputError) as caught:
        RunDir.open("other")
    assert "did you mean" not in caught.value.remedy
    with pytest.raises(InputError, match="no such file") as caught:
        read_training_record(Path("other"))
    assert "`ascendtune runs list`" in caught.value.remedy


def test_job_without_a_run_stands_for_its_logs_where_logs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "state/smoke-1a2b/log"
    logs.mkdir(parents=True)
    job = SimpleNamespace(id="smoke-1a2b", name="smoke", run_dir=logs.parent, logs=logs)
    monkeypatch.setattr("ascendtune.job.registry.jobs", lambda: iter([job]))
    assert run_named("smoke", or_logs=True) == run_named("smoke-1a2b", or_logs=True) == str(logs)
    assert run_named("smoke") == "smoke"


def test_a_name_like_that_of_a_run_may_still_be_a_model_of_a_hub(capsys: pytest.CaptureFixture[str]) -> None:
    _run(b"gpt2-ft")
    assert weights_named("gpt2-fd") == model_named("gpt2-fd") == "gpt2-fd"
    assert "did you mean 'gpt2-ft'?" in capsys.readouterr().err
    assert model_named("gpt2-ft") == "runs/gpt2-ft" and model_named("bert") == "bert"
    assert capsys.readouterr().err == ""


def test_a_path_with_the_name_of_a_run_is_taken_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(b"qwen")
    assert run_named("qwen") == "runs/qwen" and capsys.readouterr().err == ""
    (tmp_path / "qwen").mkdir()
    for named in (run_named, weights_named, model_named):
        assert named("qwen") == "qwen"
        assert "for the run of this name give runs/qwen" in " ".join(capsys.readouterr().err.split())
    assert run_named("runs/qwen") == "runs/qwen" and complete_weights("qwen@") == []
    assert capsys.readouterr().err == ""
