"""`ascendtune fetch` as a user gives it, from a hub on loopback."""

from __future__ import annotations

import _thread
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascendtune.cli import main as command_line
from hub_server import COMMIT, Hub, serving

_FILES = {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": b"0" * 5_000}


def main(arguments: list[str]) -> object:
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as left:
        command_line.main(arguments)
    return left.value.code


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with serving(Hub(_FILES, frozenset({"model.safetensors"}))) as held:
        yield held


def test_fetch_writes_the_files_of_one_repository(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)[0]
    assert (facts["commit"], facts["files"], facts["directory"]) == (COMMIT, 2, "models/m")
    assert Path("models/m/config.json").read_bytes() == _FILES["config.json"]


def test_interrupt_says_how_to_continue(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    # Once: a second interrupt would end the wait for the threads that download, which a process does not outlive.
    pieces = itertools.count()
    hub.before_piece = lambda name: None if next(pieces) else _thread.interrupt_main()
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint]) == 130
    assert "stopped; the same command continues at the last byte" in capsys.readouterr().err
    hub.before_piece = lambda name: None
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint]) == 0


def test_files_that_are_left_out_are_named(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.files = {**hub.files, "pytorch_model.bin": b"pickle"}
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint]) == 0
    assert "; 1 left out: pytorch_model.bin\n" in capsys.readouterr().err


def test_verify_ends_with_1_where_a_file_changed(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint]) == 0
    assert main(["fetch", "model", "o/m", "--verify"]) == 0
    Path("models/m/config.json").write_text("{}")
    assert main(["fetch", "model", "o/m", "--verify"]) == 1
    assert "fetched-files-changed" in capsys.readouterr().err


def test_forbidden_network_is_said_and_files_are_verified_all_the_same(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint]) == 0
    asked = len(hub.tokens)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint, "--to", "other"]) == 3
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err and len(hub.tokens) == asked
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint, "--to", "other"]) == 3
    said = capsys.readouterr().err
    assert "TRANSFORMERS_OFFLINE is set" in said and ": HF_HUB_OFFLINE=0 ascendtune fetch" in said
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint, "--to", "other"]) == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["fetch", "model", "o/m", "--verify"]) == 0


def test_a_list_is_pinned_by_its_lock_file(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.yaml").write_text("models:\n  - {id: o/m, to: a, include: ['*.json']}\n")
    assert main(["fetch", "-f", "s.yaml", "--from", hub.endpoint]) == 0
    locked = json.loads(Path("s.lock.json").read_text())
    assert locked["model o/m"]["fetched"]["commit"] == COMMIT
    Path("s.yaml").write_text("models:\n  - {id: o/m, to: b, include: ['*.json']}\n")
    hub.tokens.clear()
    assert main(["fetch", "-f", "s.yaml", "--from", hub.endpoint]) == 0
    assert len(hub.tokens) == 1, "the file alone was asked for, not the listing"
    # What the hub has under this commit changed all the same: the hash of the lock file decides.
    hub.files = {**_FILES, "config.json": b'{"model_type": "qwen3"}'}
    Path("s.yaml").write_text("models:\n  - {id: o/m, to: c, include: ['*.json']}\n")
    assert main(["fetch", "-f", "s.yaml", "--from", hub.endpoint]) == 3
    assert not Path("c/config.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["fetch"], "option-missing"),
        (["fetch", "model"], "option-missing"),
        (["fetch", "model", "a/b", "c/d", "--to", "x"], "conflicting-options"),
        (["fetch", "model", "../b"], "invalid-hub-id"),
        (["fetch", "model", "a/b", "--revision", "x\ny"], "invalid-hub-id"),
        (["fetch", "model", "a/b", "--from", "ftp://x"], "invalid-option-value"),
        (["fetch", "model", "a/b", "--verify"], "nothing-fetched"),
        (["fetch", "model", "-f", "s.yaml"], "conflicting-options"),
        (["fetch", "-f", "nothing.yaml"], "document-empty"),
    ],
)
def test_wrong_use_is_told_before_any_request(
    arguments: list[str], code: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("nothing.yaml").write_text("models: []\n")
    assert main(arguments) == 2
    assert f"code: {code}" in capsys.readouterr().err
    assert not hub.tokens


def test_a_directory_of_another_repository_is_refused(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint, "--to", "x"]) == 0
    assert main(["fetch", "model", "o/n", "--from", hub.endpoint, "--to", "x"]) == 2
    assert "fetch-target-taken" in capsys.readouterr().err


def test_the_script_is_printed(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "model", "o/m", "--from", hub.endpoint, "--export-script"]) == 0
    assert capsys.readouterr().out.startswith("#!/usr/bin/env bash\n")
    assert not Path("models").exists()


@pytest.mark.parametrize("way", ["--from", "HF_ENDPOINT", "MODELSCOPE_ENDPOINT"])
def test_password_in_the_address_of_a_hub_is_refused_and_not_shown(
    hub: Hub, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = hub.endpoint.replace("http://", "http://me:planted0secret@")
    words = {"--from": ["--from", address], "MODELSCOPE_ENDPOINT": ["--from", "modelscope"]}.get(way, [])
    if way != "--from":
        monkeypatch.setenv(way, address)
    assert main(["fetch", "model", "o/m", *words]) == 2
    shown = "".join(capsys.readouterr())
    assert "HF_TOKEN" in shown and "planted0secret" not in shown and not hub.tokens
