"""Errors, warnings and questions on stderr, in one form for every command: what happened, what to do, where to look."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import typer
from typer.exceptions import TyperException

from ascendtune.cli.other_tools import option_remedy
from ascendtune.cli.terminal import colour, print_json, width
from ascendtune.core.errors import AscendtuneError, InputError, error_to_json
from ascendtune.core.terminal_text import wrapped


def print_error(error: AscendtuneError) -> None:
    """Print the error and the further errors in it."""
    for each in _all_in(error):
        _print(each.what, each.remedy, each.where, each.code)


def print_as_json(error: AscendtuneError) -> None:
    """Print the error and the further errors in it on stdout, in one line: some programs read a document, others
    lines."""
    print_json({"errors": [error_to_json(each) for each in _all_in(error)]}, indent=None)


def _all_in(error: AscendtuneError) -> Iterator[AscendtuneError]:
    yield error
    for other in error.further:
        yield from _all_in(other)


def usage_error(error: TyperException, words: list[str]) -> InputError | None:
    """Our error for a usage error of the command line: an unknown command or option, a missing argument, a wrong type.

    None if its message is the help text of a group.
    """
    context = getattr(error, "ctx", None)
    command = context.command_path if context else _command_in(words)
    message = error.format_message()
    if message.startswith("Usage:"):
        return None
    # If pydantic converted a value, its message is written for programmers.
    message = message.replace(": Value error, ", ": ").replace(": Input should", ": it should")
    from ascendtune.core.mask import without_secrets

    # Choices are on separate lines. A wrong value may be an address with a password.
    message = without_secrets(" ".join(message.split()))
    remedy = option_remedy(getattr(error, "option_name", None) or "", words) or f"see `{command} --help`"
    if command == "ascendtune init" and "unexpected extra argument" in message:
        remedy = "ascendtune init --model MODEL --data DATA"
    if command == "ascendtune explain" and message.startswith("Missing argument"):
        remedy = "give a log or a run, or - for the output of another program: COMMAND 2>&1 | ascendtune explain -"
    return InputError(message[:1].lower() + message[1:].rstrip("."), code="usage", remedy=remedy)


def _command_in(words: list[str]) -> str:
    """The command at the beginning of the words, for errors of options, which do not contain it."""
    from ascendtune.cli.commands import COMMANDS

    paths = [" ".join(words[:length]) for length in (2, 1)]
    return " ".join(["ascendtune", *[path for path in paths if path in COMMANDS][:1]])


def internal_error(error: Exception) -> AscendtuneError:
    """Our error for an unexpected exception."""
    words = " ".join(str(error).split())
    what = f"this is a bug in ascendtune: {type(error).__name__}: {words}"
    return AscendtuneError(what, code="internal-error", remedy="run with --debug for the traceback, and report it")


def warn(message: str) -> None:
    """Print a warning; the command continues."""
    _say("warning", "yellow", message)


def notice_ignored(sentences: Sequence[str], recipe: Path) -> None:
    """Print one line on keys without effect: the sentence if there is only one, else their number.

    Each sentence with --verbose, and none with --quiet.
    """
    from ascendtune.core.log import is_verbose

    if len(sentences) > 1 and not is_verbose():
        check = f"ascendtune recipe check {shlex.quote(str(recipe))}"
        notice(f"{len(sentences)} notes on keys without effect: `{check}` lists them")
        return
    for sentence in sentences:
        notice(sentence)


def notice(message: str) -> None:
    """Print a notice; nothing with --quiet."""
    # Imported here, as below: `logging` takes a twentieth of the time of `--help`.
    from ascendtune.core.log import is_quiet

    if not is_quiet():
        _say("notice", "dim", message)


def suggest_next(command: str) -> None:
    """Print the command that usually follows, on stderr; nothing with --quiet, or without a terminal."""
    from ascendtune.core.log import is_quiet

    if not is_quiet() and sys.stderr.isatty():
        print(f"next: {command}", file=sys.stderr)


def confirm(question: str, *, yes: bool) -> bool:
    """Whether to continue: --yes, or the answer on the terminal.

    Raises:
        InputError: stdin is not a terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InputError(
            "nothing was changed: this needs a confirmation, and stdin is not a terminal",
            code="confirmation-needed",
            remedy="check the list above, then add --yes",
        )
    return typer.confirm(question, err=True)


def _print(what: str, remedy: str, where: str | None, code: str) -> None:
    _say("error", "red", what)
    _write(wrapped(f"   do: {remedy}", width(sys.stderr)))
    if where:
        _write(f"where: {where}")
    if code:
        _write(f" code: {code}")


def _say(kind: str, painted: str, message: str) -> None:
    text = wrapped(f"{kind}: {message}", width(sys.stderr))
    _write(colour(kind, painted, sys.stderr) + text.removeprefix(kind))


def _write(text: str) -> None:
    # The exit code reports it, too, if stderr is on a full disk or its reader has ended.
    with suppress(OSError):
        print(text, file=sys.stderr)
