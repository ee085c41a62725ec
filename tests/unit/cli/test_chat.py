"""What a user of `chat` sees before the first question."""

from __future__ import annotations

import io
import os
import sys
import termios
from collections.abc import Iterator
from typing import TextIO

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


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    """What a user types into, and what a program reads from."""
    keyboard, screen = os.openpty()
    with os.fdopen(screen, "r") as program:
        yield keyboard, program
    os.close(keyboard)


def test_keys_typed_before_the_prompt_are_kept(terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, program = terminal
    monkeypatch.setattr(sys, "stdin", program)
    before = termios.tcgetattr(program)
    with chat._keys_kept():
        os.write(keyboard, b"Hi\x04")
        assert os.read(program.fileno(), 8) == b"Hi\x04"
    assert termios.tcgetattr(program) == before


def test_the_terminal_is_as_before_after_an_error(
    terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, program = terminal
    monkeypatch.setattr(sys, "stdin", program)
    before = termios.tcgetattr(program)
    with pytest.raises(KeyboardInterrupt), chat._keys_kept():
        raise KeyboardInterrupt
    assert termios.tcgetattr(program) == before


@pytest.mark.parametrize(("typed", "ended"), [(b"", False), (b"\x04", True), (b"Hi\n", False), (b"Hi\n\x04", False)])
def test_end_of_input_is_seen_before_anything_is_loaded(
    typed: bytes, ended: bool, terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard, program = terminal
    monkeypatch.setattr(sys, "stdin", program)
    os.write(keyboard, typed)
    assert chat._has_ended() == ended


def test_a_pipe_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    assert not chat._has_ended()
    with chat._keys_kept():
        assert list(chat._lines()) == ["Hi"]
