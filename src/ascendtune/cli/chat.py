"""`ascendtune chat`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.complain import complain
from ascendtune.cli.options import ChatTemplate, SamplingSeed, SystemMessage, Temperature, TopP, TrustRemoteCode
from ascendtune.cli.run_names import complete_run, run_named
from ascendtune.core.terminal_text import terminal_width, wrapped

if TYPE_CHECKING:
    from ascendtune.data.conversation import Message
    from ascendtune.infer.engine import Engine

_COMMANDS = "/reset starts a new conversation, /exit or Ctrl-D quits, Ctrl-C stops an answer"


def chat(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="A run, a model directory or a hub id.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    system: SystemMessage = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens in an answer.")] = 1024,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: SamplingSeed = 0,
    template: ChatTemplate = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Chat with a run's final weights, or with any model.

    \b
    ascendtune chat runs/alpaca-qwen
    ascendtune chat runs/alpaca-qwen --system "Answer in one sentence."
    echo "Who are you?" | ascendtune chat runs/alpaca-qwen

    /reset starts a new conversation, /exit or Ctrl-D quits, Ctrl-C stops an answer. Each line is a turn.
    """
    if _has_ended():
        return
    # First: the imports take longer than it takes to type a key.
    with _keys_kept():
        from ascendtune.core import log
        from ascendtune.infer.engine import load

        log.set_up()
        engine = load(run_named(model), template=template, trust_remote_code=trust_remote_code)
        _converse(engine, system, max_new_tokens, temperature, top_p, seed)


def _converse(
    engine: Engine, system: str | None, max_new_tokens: int, temperature: float, top_p: float, seed: int
) -> None:
    begin: list[Message] = [{"role": "system", "content": system}] if system else []
    messages = list(begin)
    for number, line in enumerate(_lines()):
        if line == "/exit":
            return
        if line == "/reset":
            messages = list(begin)
            continue
        messages.append({"role": "user", "content": line})
        answer = _answer(engine, messages, max_new_tokens, temperature, top_p, seed + number)
        if answer is None:
            messages.pop()
        else:
            messages.append({"role": "assistant", "content": answer})


def _has_ended() -> bool:
    """Whether Ctrl-D was typed already, and nothing before it: the terminal can be read, and holds no byte."""
    if not sys.stdin.isatty():
        return False
    import fcntl
    import select
    import termios

    if not select.select([sys.stdin], [], [], 0)[0]:
        return False
    waiting = fcntl.ioctl(sys.stdin, termios.FIONREAD, bytes(4))
    return not any(waiting)


@contextmanager
def _keys_kept() -> Iterator[None]:
    """Keep what is typed before a prompt, Ctrl-D too, which a terminal that collects lines does not pass on."""
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
    # Its import gives input() history and line editing.
    import readline  # noqa: F401

    print(wrapped(_COMMANDS, terminal_width(sys.stderr)), file=sys.stderr)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        if line:
            yield line


def _answer(
    engine: Engine, messages: list[Message], max_new_tokens: int, temperature: float, top_p: float, seed: int
) -> str | None:
    """Print the answer as it is generated; Ctrl-C ends it early. None if the template rejects the conversation."""
    from ascendtune.core.errors import InputError

    pieces: list[str] = []

    def show(piece: str) -> None:
        # The template leaves a space or line break before the first word of some answers.
        shown = piece if pieces else piece.lstrip()
        if shown:
            pieces.append(shown)
            print(shown, end="", flush=True)

    try:
        engine.stream(messages, show, max_new_tokens, temperature=temperature, top_p=top_p, seed=seed)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    except InputError as error:
        if not sys.stdin.isatty():
            raise
        complain(error)
        return None
    print(flush=True)
    return "".join(pieces).rstrip()
