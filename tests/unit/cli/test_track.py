"""`ascendtune track` as a user gives it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ascendtune.cli import main as command_line
from python_path import python_path
from wandb_server import MARKING, write_client

_OFFLINE = Path(__file__).parents[1] / "train/report/offline_run.wandb"


def main(*words: str) -> object:
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as left:
        command_line.main([*words])
    return left.value.code


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _events(place: Path, scale: float) -> Path:
    writer = EventFileWriter(str(place))
    for step in range(1, 6):
        value = Summary.Value(tag="train/loss", simple_value=scale / step)
        writer.add_event(Event(wall_time=1e9 + step, step=step, summary=Summary(value=[value])))
    writer.close()
    return next(place.iterdir())


def test_imported_runs_are_listed_shown_and_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _events(place / "logs/a", 2.0)
    _events(place / "logs/b", 4.0)
    assert main("track", "import", "logs") == 0
    assert "runs/logs-a: 5 points, 5 steps" in capsys.readouterr().out
    assert main("runs", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert {(each["name"], each["state"], each["step"]) for each in listed} == {
        ("logs-a", "imported", 5), ("logs-b", "imported", 5),
    }  # fmt: skip
    assert main("runs", "show", "runs/logs-a") == 0
    shown = capsys.readouterr().out
    assert str(place / "logs/a") in shown and "recipe.yaml" not in shown and "attempt," not in shown
    assert main("align", "runs/logs-a", "runs/logs-b", "--json") == 1
    capsys.readouterr()
    assert main("align", "runs/logs-a", "logs/a", "--json") in (0, 4), "the same records, imported and not"
    capsys.readouterr()
    assert main("runs", "compare", "runs/logs-a", "runs/logs-b", "--json") == 0
    assert json.loads(capsys.readouterr().out)["loss"]["5"] == pytest.approx([0.4, 0.8])


def test_damaged_event_file_is_named_and_the_rest_is_imported(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _events(place / "logs", 2.0)
    content = bytearray(file.read_bytes())
    content[-6] ^= 1
    file.write_bytes(content)
    assert main("track", "import", "logs", "--json") == 1
    shown = capsys.readouterr()
    (run,) = json.loads(shown.out)
    assert run["steps"] == 4 and list(run["damaged"]) == [file.name] and "is damaged at byte" in shown.err


def test_offline_runs_are_listed_and_uploaded_by_wandbs_client(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place / "wandb/offline-run-20260101_000000-abc"
    run.mkdir(parents=True)
    shutil.copyfile(_OFFLINE, run / "run-abc.wandb")
    assert main("track", "sync", "--dry-run") == 0
    assert "new" in capsys.readouterr().out
    write_client(place / "client", MARKING)
    monkeypatch.setenv("PYTHONPATH", python_path(place / "client"))
    assert main("track", "sync", "--json") == 0
    assert [each["outcome"] for each in json.loads(capsys.readouterr().out)] == ["uploaded"]
    assert main("track", "sync", "--json") == 0
    assert [each["state"] for each in json.loads(capsys.readouterr().out)] == ["uploaded"]


def test_login_becomes_the_trackers_own_client(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def replaced(argv: list[str], env: object) -> None:
        started.append(argv)
        raise SystemExit(0)

    program = place / "wandb"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("ascendtune.core.process.replace", replaced)
    monkeypatch.setenv("PATH", str(place))
    assert main("track", "login") == 2, "stdin is not a terminal"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert main("track", "login", "--host", "https://wandb.example.com") == 0
    assert started[0][1:] == ["login", "--relogin", "--host", "https://wandb.example.com"]
    assert Path(started[0][0]).name == "wandb"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["import", "absent"], "path-missing"),
        (["import", "."], "no-training-records"),
        (["sync", "absent"], "path-missing"),
        (["login", "swanlab"], "package-missing"),
    ],
)
def test_wrong_use_is_told(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main("track", *words) in (2, 3)
    assert f"code: {code}" in capsys.readouterr().err


def test_run_is_sent_only_to_a_server_that_this_user_names(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place / "runs/run"
    run.mkdir(parents=True)
    record = {"schema_version": 1, "state": "finished", "attempts": [{"attempt": 1, "started": 1.7e9}]}
    (run / "run.json").write_text(json.dumps(record))
    (run / "metrics.jsonl").write_text('{"attempt": 1, "step": 1, "loss": 1.0}\n')
    (run / "recipe.yaml").write_text("track: {send_to: [trackio], host: 'https://attacker.example'}\n")
    asked: list[object] = []

    def init(**options: object) -> SimpleNamespace:
        asked.append(options["server_url"])
        return SimpleNamespace(_next_step=0, log=lambda values, step: None, finish=lambda: print("client's words"))

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    assert main("track", "send", "run", "--to", "trackio") == 2
    assert "code: host-not-given" in capsys.readouterr().err and not asked
    assert main("track", "send", "run", "--to", "trackio", "--host", "http://127.0.0.1:1", "--json") == 0
    (sent,) = json.loads(capsys.readouterr().out)
    assert sent["steps_sent"] == 1 and asked == ["http://127.0.0.1:1"]
