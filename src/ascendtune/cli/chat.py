"""`ascendtune chat`"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.messages import print_error
from ascendtune.cli.options import (
    ChatTemplate,
    Quiet,
    RunOrModel,
    SamplingSeed,
    SystemMessage,
    Temperature,
    TopP,
    TrustRemoteCode,
)
from ascendtune.cli.run_names import model_named
from ascendtune.cli.terminal import paint
from ascendtune.core.errors import AscendtuneError, InputError, translated_disk_errors
from ascendtune.core.terminal_text import terminal_width, wrapped

if TYPE_CHECKING:
    from ascendtune.data.conversation import Message
    from ascendtune.infer.engine import Engine, Weights

_COMMANDS = "/help lists the commands, /exit or Ctrl-D quits, Ctrl-C stops an answer"
_HELP = """/clear             start a new conversation (/reset is the same)
/system [TEXT]     set the system message, or remove it, and start a new conversation
/regenerate        answer the last question again, with another seed
/save FILE         write the conversation as a row of training data (messages)
"""
_HELP_ON_TERMINAL = """/exit              quit, like exit, Ctrl-D, and Ctrl-C twice at an empty prompt
\\ at a line's end  continue the message on the next line
\"\"\"                begin a message of several lines; the same ends it"""
_HELP_OF_PIPE = """/exit              quit, as at the end of the input
Every other line is a message."""
_HELP_INDENT = 19
_EXITS = ("/exit", "/quit", "/bye", "exit", "quit")
"""Without a slash, as in other chat programs, on a terminal only."""
_QUOTES = '"' * 3
_PASTE_SECONDS = 0.05
"""The next line of a paste arrives within this time; typing one takes longer."""
_SAMPLED = 0.7
"""Temperature for /regenerate if the chat has 0, which would result in the same answer again."""


def chat(
    model: RunOrModel,
    system: SystemMessage = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens in an answer.")] = 1024,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: SamplingSeed = 0,
    template: ChatTemplate = "auto",
    trust_remote_code: TrustRemoteCode = False,
    base: Annotated[bool, typer.Option("--base", help="Show the base model's answer before each answer.")] = False,
    quiet: Quiet = False,
) -> None:
    """Chat with a run's final weights, or with any model.

    \b
    ascendtune chat runs/alpaca-qwen
    ascendtune chat runs/alpaca-qwen --system "Answer in one sentence."
    echo "Who are you?" | ascendtune chat runs/alpaca-qwen

    Each line is a turn. /help lists the commands: clear, system, regenerate, save. Ctrl-C stops an answer; Ctrl-D, or
    Ctrl-C twice at an empty prompt, quits.
    """
    if _has_ended():
        return
    # First, because the imports take longer than typing a key.
    with _keys_kept():
        from ascendtune.core import log
        from ascendtune.core.progress_bar import ProgressBar
        from ascendtune.infer.engine import find_weights, load

        log.set_up(quiet=quiet)
        with ProgressBar(sys.stderr) as progress, progress.counting("loading the model"):
            named = model_named(model, trust_remote_code=trust_remote_code)
            before = load(_base_of(find_weights(named), named), template=template) if base else None
            engine = load(named, template=template, trust_remote_code=trust_remote_code)
        options = _Options(max_new_tokens, temperature, top_p, seed)
        _converse(_Conversation(engine, before, options, system))


def _converse(conversation: _Conversation) -> None:
    for line in _lines():
        if line in _EXITS and (line.startswith("/") or sys.stdin.isatty()):
            return
        conversation.take(line)


@dataclass(frozen=True)
class _Options:
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int


class _Conversation:
    """Turns so far, and the effect of each line of the user on them."""

    def __init__(self, engine: Engine, before: Engine | None, options: _Options, system: str | None) -> None:
        self._engine, self._before, self._options = engine, before, options
        self._answers = 0
        self._restart(system)

    def take(self, line: str) -> None:
        """Run a command, or answer a message."""
        word, _, rest = line.partition(" ")
        match word:
            case "/clear" | "/reset":
                self._restart(self._system)
            case "/help":
                text = _HELP + (_HELP_ON_TERMINAL if sys.stdin.isatty() else _HELP_OF_PIPE)
                print(wrapped(text, terminal_width(sys.stderr), indent=_HELP_INDENT), file=sys.stderr)
            case "/system":
                self._restart(rest.strip() or None)
            case "/regenerate":
                self._regenerate()
            case "/save":
                self._save(rest.strip())
            case _ if re.fullmatch(r"/[a-z]+", line) and sys.stdin.isatty():
                print(f"unknown command {line}; /help lists the commands", file=sys.stderr)
            case _:
                self._messages.append({"role": "user", "content": line})
                self._answer(self._options.temperature)

    def _restart(self, system: str | None) -> None:
        self._system = system
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def _regenerate(self) -> None:
        if not self._messages or self._messages[-1]["role"] != "assistant":
            print("there is no answer yet", file=sys.stderr)
            return
        *before, question, answer = self._messages
        self._messages = [*before, question]
        self._answer(self._options.temperature or _SAMPLED)
        if self._messages == before:  # stopped: the old answer stays
            self._messages = [*before, question, answer]

    def _answer(self, temperature: float) -> None:
        options = replace(self._options, temperature=temperature, seed=self._options.seed + self._answers)
        self._answers += 1
        if self._before is not None:
            print("base: ", end="", flush=True)
            _answer(self._before, self._messages, options)
            print("run:  ", end="", flush=True)
        answer = _answer(self._engine, self._messages, options)
        if answer is None:
            self._messages.pop()
        else:
            self._messages.append(answer)

    def _save(self, name: str) -> None:
        try:
            if not name:
                raise InputError("/save needs a file", code="option-missing", remedy="write /save chat.jsonl")
            if not any(message["role"] == "assistant" for message in self._messages):
                raise InputError(
                    "the conversation has no answer yet", code="nothing-to-save", remedy="write a message first"
                )
            path = Path(name).expanduser()
            with translated_disk_errors(path, "saving the conversation"), path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"messages": self._messages}, ensure_ascii=False) + "\n")
        except AscendtuneError as error:
            print_error(error)
        else:
            print(f"added to {path}", file=sys.stderr)


def _base_of(weights: Weights, named: str) -> str:
    """The model before training: the adapter's base, or the model of a run of full weights.

    Raises:
        InputError: it is not a trained model.
    """
    from ascendtune.core.rundir import RunDir

    if weights.adapter is not None:
        return str(weights.model)
    trained = RunDir(named).read_if_any().get("model_directory")
    if not isinstance(trained, str):
        raise InputError(
            "this is neither a run nor an adapter, so it has no base model",
            code="base-model-unknown",
            remedy="leave --base out",
            where=named,
        )
    return trained


def _has_ended() -> bool:
    """Whether Ctrl-D was typed already, and nothing before it: the terminal is readable, and contains no byte."""
    if not sys.stdin.isatty():
        return False
    import select

    return bool(select.select([sys.stdin], [], [], 0)[0]) and not _is_waiting(0)


@contextmanager
def _keys_kept() -> Iterator[None]:
    """Keep the input typed before a prompt, including Ctrl-D, which a terminal in line mode does not pass on."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    by_key = termios.tcgetattr(terminal)
    by_key[3] &= ~termios.ICANON
    by_key[6][termios.VMIN], by_key[6][termios.VTIME] = 1, 0
    termios.tcsetattr(terminal, termios.TCSANOW, by_key)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _lines() -> Iterator[str]:
    """Lines from the terminal or the pipe, without empty ones."""
    if not sys.stdin.isatty():
        yield from filter(None, map(str.strip, sys.stdin))
        return
    # Its import adds history and line editing to input().
    import readline

    print(wrapped(_COMMANDS, terminal_width(sys.stderr)), file=sys.stderr)
    was_interrupted = False
    while True:
        try:
            line = _message(input)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if readline.get_line_buffer():
                was_interrupted = False
            elif was_interrupted:
                return
            else:
                # It may have been meant for an answer that has just ended.
                was_interrupted = True
                print("press Ctrl-C again, or /exit, to quit", file=sys.stderr)
            continue
        was_interrupted = False
        if line:
            yield line


def _message(ask: Callable[[str], str]) -> str:
    """One message: a line, pasted lines, lines that end with a backslash and the next one, or lines between triple
    quotes."""
    typed_ahead = _is_waiting(0)
    line = ask("> ").strip()
    if not typed_ahead and _is_waiting(_PASTE_SECONDS):
        return _pasted(line, ask)
    if line.startswith(_QUOTES):
        lines = [line.removeprefix(_QUOTES)]
        while not lines[-1].rstrip().endswith(_QUOTES) or (len(lines) == 1 and lines[0] == ""):
            lines.append(ask(". "))
        return "\n".join(lines).rstrip().removesuffix(_QUOTES).strip()
    while line.endswith("\\"):
        line = line[:-1] + "\n" + ask(". ").rstrip()
    return line.strip()


def _pasted(first: str, ask: Callable[[str], str]) -> str:
    """The message of a paste that the terminal does not mark as one: its lines arrive at once.

    A terminal that marks pastes passes all lines together. A last line without a line end waits for Enter.
    """
    lines = [first]
    while _is_waiting(_PASTE_SECONDS):
        lines.append(ask(". ").rstrip())
    text = "\n".join(lines).strip()
    if text.startswith(_QUOTES) and text.endswith(_QUOTES) and len(text) >= 2 * len(_QUOTES):
        text = text[len(_QUOTES) : -len(_QUOTES)].strip()
    return text


def _is_waiting(seconds: float) -> bool:
    """Whether the terminal contains a line, or receives one within `seconds`. The end of input does not count."""
    import fcntl
    import select
    import termios

    if not select.select([sys.stdin], [], [], seconds)[0]:
        return False
    return any(fcntl.ioctl(sys.stdin, termios.FIONREAD, bytes(4)))


def _answer(engine: Engine, messages: list[Message], options: _Options) -> Message | None:
    """Print the answer as it is generated, on a terminal with its thought; Ctrl-C ends it early. None if the template
    rejects the conversation, or nothing was generated yet."""
    pieces: list[str] = []
    thoughts: list[str] = []

    def think(piece: str) -> None:
        thoughts.append(piece)
        if sys.stdout.isatty():
            print(paint(piece, "dim"), end="", flush=True)

    def show(piece: str) -> None:
        # The template leaves a space or line break before the first word of some answers.
        shown = piece if pieces else piece.lstrip()
        if shown:
            print("\n\n" if thoughts and not pieces and sys.stdout.isatty() else "", shown, sep="", end="", flush=True)
            pieces.append(shown)

    try:
        engine.stream(messages, show, **asdict(options), on_thought=think)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        if not pieces and not thoughts:
            # An empty answer would be a turn of the conversation, and of the rows that /save writes.
            print(flush=True)
            return None
    except InputError as error:
        if not sys.stdin.isatty():
            raise
        print_error(error)
        return None
    print(flush=True)
    answer: Message = {"role": "assistant", "content": "".join(pieces).rstrip()}
    if thoughts:
        answer["reasoning_content"] = "".join(thoughts)
    return answer
