"""What the shell is offered for the name of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ascendtune.cli.run_names import complete_run


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
