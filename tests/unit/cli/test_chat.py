"""The output of `chat` before the first question."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from ascendtune.cli import chat
from ascendtune.data.conversation import Message


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_help_of_the_keys_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_of_input(_: str) -> str:
        raise EOFError

    shown = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(chat, "_is_waiting", lambda _: False)
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


class Echo:
    """An engine that answers with the number of turns and the seed."""

    def stream(self, messages: Sequence[Message], on_text: Callable[[str], None], *_: Any, **options: Any) -> str:
        on_text(f"{len(messages)}/{options['seed']}/{options['temperature']}")
        return ""


@pytest.fixture
def conversation() -> chat._Conversation:
    return chat._Conversation(Echo(), None, chat._Options(9, 0.0, 1.0, 0), None)  # type: ignore[arg-type]


def _answers(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_commands_change_the_conversation(conversation: chat._Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("one", "two", "/regenerate", "/clear", "three", "/system Be brief.", "four"):
        conversation.take(line)
    assert _answers(capsys) == ["1/0/0.0", "3/1/0.0", "3/2/0.7", "1/3/0.0", "2/4/0.0"]


@pytest.mark.parametrize(
    ("line", "is_terminal", "answers"),
    [("/quit", False, 1), ("quit", True, 1), ("quit", False, 3), ("exit now", True, 3)],
)
def test_words_that_end_other_chats_end_this_one(
    line: str, is_terminal: bool, answers: int, conversation: chat._Conversation,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(chat, "_lines", lambda: iter(["one", line, "two"]))
    monkeypatch.setattr(sys, "stdin", Terminal() if is_terminal else io.StringIO())
    chat._converse(conversation)
    assert len(_answers(capsys)) == answers


def test_a_conversation_is_saved_as_training_data(
    conversation: chat._Conversation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation.take("one")
    for line in (f"/save {tmp_path / 'chat.jsonl'}", "/save", f"/save {tmp_path / 'no' / 'x'}"):
        conversation.take(line)
    (row,) = (tmp_path / "chat.jsonl").read_text().splitlines()
    assert json.loads(row)["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1/0/0.0"},
    ]
    assert capsys.readouterr().err.count("error: ") == 2


class Thinker:
    """An engine that thinks before it answers."""

    def stream(
        self, _: Sequence[Message], on_text: Callable[[str], None], *__: Any, on_thought: Callable[[str], None],
        **___: Any,
    ) -> str:  # fmt: skip
        for piece in ("They", " greet."):
            on_thought(piece)
        on_text("Hi!")
        return "Hi!"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_thought_is_shown_on_a_terminal_and_kept_apart(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: Any = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("NO_COLOR", "1")
    talk = chat._Conversation(Thinker(), None, chat._Options(9, 0.0, 1.0, 0), None)  # type: ignore[arg-type]
    talk.take("hello")
    assert shown.getvalue() == ("They greet.\n\n" if is_terminal else "") + "Hi!\n"
    talk.take(f"/save {tmp_path / 'chat.jsonl'}")
    answer = json.loads((tmp_path / "chat.jsonl").read_text())["messages"][1]
    assert answer == {"role": "assistant", "content": "Hi!", "reasoning_content": "They greet."}


def test_an_answer_that_is_stopped_before_its_first_word_is_no_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped:
        def __init__(self, said: str) -> None:
            self._said = said

        def stream(self, messages: list[Message], show: Callable[[str], None], **_: Any) -> None:
            if self._said:
                show(self._said)
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Terminal())
    options = chat._Options(8, 0.0, 1.0, 0)
    for said, kept in (("", []), ("Par", ["question", "Par"])):
        talk = chat._Conversation(Stopped(said), None, options, None)  # type: ignore[arg-type]
        talk.take("question")
        assert [each["content"] for each in talk._messages] == kept


def test_conversation_without_an_answer_is_not_saved(
    conversation: chat._Conversation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (f"/save {tmp_path / 'chat.jsonl'}", "/system Be brief.", f"/save {tmp_path / 'chat.jsonl'}"):
        conversation.take(line)
    assert not (tmp_path / "chat.jsonl").exists()
    assert capsys.readouterr().err.count("code: nothing-to-save") == 2


def test_stopped_regeneration_keeps_the_old_answer(
    conversation: chat._Conversation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation.take("one")
    with monkeypatch.context() as patch:
        patch.setattr(chat, "_answer", lambda *_: None)
        conversation.take("/regenerate")
    conversation.take(f"/save {tmp_path / 'chat.jsonl'}")
    assert [each["role"] for each in json.loads((tmp_path / "chat.jsonl").read_text())["messages"]] == [
        "user",
        "assistant",
    ]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hello"], "hello"),
        (["a\\", "b"], "a\nb"),
        (['"""', "def f():", "    return 1", '"""'], "def f():\n    return 1"),
        (['"""one', 'two"""'], "one\ntwo"),
        (['"""one"""'], "one"),
    ],
)
def test_messages_may_have_several_lines(typed: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "_is_waiting", lambda _: False)
    lines = iter(typed)
    assert chat._message(lambda _: next(lines)) == message


def test_only_a_second_ctrl_c_at_an_empty_prompt_ends_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first may have been meant for an answer that had just ended."""
    typed = iter([None, "one", None, None, "two"])

    def asked(_: str) -> str:
        line = next(typed)
        if line is None:
            raise KeyboardInterrupt
        return line

    monkeypatch.setattr(chat, "_is_waiting", lambda _: False)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", asked)
    assert list(chat._lines()) == ["one"] and next(typed) == "two"
    assert capsys.readouterr().err.count("press Ctrl-C again, or /exit, to quit\n") == 2


_CHATTER = """
import time
from ascendtune.cli import chat
chat._PASTE_SECONDS = 0.5
for line in chat._lines():
    time.sleep(2 if line == "wait" else 0)
    print(repr(line), flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("marked", "typed", "messages"),
    [
        (False, ["one\r", "two\r"], ["one", "two"]),
        (False, ["def f():\r\r    return 1\r"], ["def f():\n\n    return 1"]),
        (False, ["one\rtwo", "!\r"], ["one\ntwo!"]),
        (False, ['"""\rone\r\rtwo\r"""\r'], ["one\n\ntwo"]),
        # Typed while an answer is on its way: a question each.
        (False, ["wait\r", "one\rtwo\r"], ["wait", "one", "two"]),
        (True, ["\x1b[200~one\rtwo\x1b[201~\r"], ["one\ntwo"]),
    ],
)
def test_pasted_lines_are_one_message(marked: bool, typed: list[str], messages: list[str]) -> None:
    """In a terminal that marks pastes (bracketed paste), and in one that does not."""
    keyboard, screen = os.openpty()
    environment = {**os.environ, "TERM": "xterm" if marked else "dumb", "INPUTRC": os.devnull}
    chatter = subprocess.Popen(
        [sys.executable, "-c", _CHATTER], stdin=screen, stdout=screen, stderr=screen, env=environment
    )
    os.close(screen)
    shown = ""

    def until(text: str) -> None:
        nonlocal shown
        while text not in shown:
            ready, _, _ = select.select([keyboard], [], [], 60)
            assert ready, f"{text!r} is not in {shown!r}"
            shown += os.read(keyboard, 4096).decode()

    try:
        until("> ")
        for number, keys in enumerate(typed):
            os.write(keyboard, keys.encode())
            if keys == "wait\r":
                # Not before the line has been taken: its answer takes longer than this.
                time.sleep(1)
            elif number < len(typed) - 1:
                is_paste = "\r" in keys[:-1]
                until(". " if is_paste else repr(keys.rstrip()))
                # What is typed between an answer and the next prompt is echoed onto the line of the answer.
                while not (is_paste or shown.endswith("> ")):
                    shown += os.read(keyboard, 4096).decode()
        for message in messages:
            until(repr(message))
        while not shown.endswith("> "):
            shown += os.read(keyboard, 4096).decode()
        os.write(keyboard, b"\x04")
        assert chatter.wait(60) == 0
    finally:
        chatter.kill()
        chatter.wait()
        os.close(keyboard)
    answers = [line for line in shown.replace("\r", "").splitlines() if line.startswith("'")]
    assert answers == [repr(message) for message in messages]


def test_list_of_commands_fits_a_narrow_terminal(
    conversation: chat._Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "stdin", Terminal())
    conversation.take("/help")
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 60 and all(line[19] != " " for line in lines)


@pytest.mark.parametrize("stdin", [Terminal, io.StringIO])
def test_help_lists_what_works_in_this_input(
    stdin: type[io.StringIO], conversation: chat._Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "stdin", stdin())
    conversation.take("/help")
    listed = [line.split("  ")[0] for line in shown.getvalue().splitlines()]
    assert set(listed) > {"/clear", "/system [TEXT]", "/regenerate", "/save FILE", "/exit"}
    # Lines of a pipe are messages as they are: no key can be pressed, and no line is continued.
    assert (stdin is Terminal) == ("Ctrl-D" in shown.getvalue()) == ("\\ at a line's end" in listed)
