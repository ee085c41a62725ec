"""What a user of `chat` sees before the first question."""

from __future__ import annotations

import io
import sys

import pytest

from ascendtune.cli import chat


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_words_about_the_keys_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_of_input(_: str) -> str:
        raise EOFError

    shown = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr("builtins.input", end_of_input)
    assert list(chat._lines()) == []
    lines = shown.getvalue().splitlines()
    assert " ".join(map(str.strip, lines)) == chat._COMMANDS and max(map(len, lines)) <= 60
