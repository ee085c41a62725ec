"""`ascendtune explain`: the language of the answer, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.cli.explain import explain
from ascendtune.core.errors import InputError


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "job.log"
    path.write_text("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB\n")
    return str(path)


@pytest.mark.parametrize(
    ("lang", "locale", "word"),
    [(None, "C", "certain"), (None, "zh_CN.UTF-8", "确定"), ("zh", "C", "确定"), ("en", "zh_CN.UTF-8", "certain")],
)
def test_answer_is_in_the_language_of_option_or_locale(
    log: str,
    lang: str | None,
    locale: str,
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LC_ALL", locale)

    assert explain([log], lang=lang) == 1
    assert word in capsys.readouterr().out


def test_json_ignores_the_locale(log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")

    explain([log], as_json=True)

    assert json.loads(capsys.readouterr().out)["sureness"].startswith("certain")


def test_unknown_language_is_refused(log: str) -> None:
    with pytest.raises(InputError) as caught:
        explain([log], lang="de")

    assert caught.value.code == "invalid-value"


def test_question_is_printed_without_a_verdict(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain([log], question=True) == 0
    assert "NPU out of memory" in capsys.readouterr().out


def test_no_question_is_asked_about_an_empty_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "job.log"
    empty.touch()

    assert explain([str(empty)], question=True) == explain([str(empty)], ask="http://127.0.0.1:9/v1") == 4
    assert explain([str(empty)], question=True) == 4
    assert "You diagnose" not in capsys.readouterr().out


def test_a_server_that_the_environment_names_is_asked_each_time(in_process: Any, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("ValueError: moon_phase=7 is not one of 4 phases\n")
    ended = in_process("explain", "job.log", ASCENDTUNE_ASK_URL="http://127.0.0.1:9/v1")
    assert ended.returncode == 1 and "moon_phase=7" in ended.stdout
    assert "the language model on 127.0.0.1:9 gave no answer" in ended.stderr
