"""The entry point: finds the command, runs it, and turns any outcome into a message and an exit code."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pkgutil import resolve_name
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import Abort, TyperException
from typer.main import get_command

from ascendtune import __version__
from ascendtune.cli.commands import COMMANDS, DEFAULTS, GROUPS
from ascendtune.cli.messages import internal_error, print_as_json, print_error, usage_error
from ascendtune.cli.other_tools import require_command
from ascendtune.cli.parameters import use_common_names
from ascendtune.core.errors import AscendtuneError, MachineError, Stopped, out_of_host_memory, uncaught_os_error
from ascendtune.core.imports import import_fault, scan_models_once
from ascendtune.core.terminal_text import make_streams_safe, terminal_width

DEBUG = "ASCENDTUNE_DEBUG"
"""Environment variable that `--debug` sets; worker processes inherit it."""

COMPLETE = "_ASCENDTUNE_COMPLETE"
"""Environment variable with which a shell requests completions; typer derives its name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    make_streams_safe()
    scan_models_once()
    words = _without_debug(list(sys.argv[1:] if arguments is None else arguments))
    if words[:1] in (["--install-completion"], ["--show-completion"]):
        from ascendtune.cli.completion import use_own_scripts

        use_own_scripts(shell_is_given=len(words) > 1 and not words[1].startswith("-"))
    if COMPLETE in os.environ:
        from ascendtune.cli.completion import use_plain_help

        use_plain_help()
    sys.exit(_run(words))


def _run(words: list[str]) -> int:
    try:
        code = _root().main(words, prog_name="ascendtune", standalone_mode=False)
        sys.stdout.flush()
        # typer returns this code for KeyboardInterrupt.
        return _interrupted(words) if code == 128 + signal.SIGINT else code if isinstance(code, int) else 0
    except AscendtuneError as error:
        return _failed(error, error, words)
    except TyperException as error:
        usage = usage_error(error, words)
        if usage is None:
            # A group was called without a command: print its help.
            with suppress(OSError):
                print(error.format_message(), file=sys.stderr)
            return error.exit_code
        return _failed(error, usage, words)
    except KeyboardInterrupt:
        return _interrupted(words)
    except Abort as abort:
        # typer raises it for a refused prompt, and for every EOFError.
        ended = abort.__cause__
        return _failed(ended, _translated(ended), words) if isinstance(ended, EOFError) else _interrupted(words)
    except (BrokenPipeError, _ReaderGone):
        _drop_output()
        return 128 + 13
    except Exception as error:  # noqa: BLE001  # unexpected exceptions are printed as one line
        return _failed(error, _translated(error), words)


def _failed(error: Exception, known_error: AscendtuneError, words: list[str]) -> int:
    """Print an exception as `known_error`, also as JSON if the command line says so; returns the exit code."""
    print_error(known_error)
    _print_for_programs(known_error, words)
    if os.environ.get(DEBUG) and not isinstance(error, TyperException):
        import traceback

        traceback.print_exception(error)
    return known_error.exit_code


def _interrupted(words: list[str]) -> int:
    """Ctrl-C, or a question that was not answered with yes."""
    stopped = Stopped("the command was stopped", remedy="start it again", signal_number=signal.SIGINT)
    _print_for_programs(stopped, words)
    return stopped.exit_code


def _print_for_programs(error: AscendtuneError, words: list[str]) -> None:
    """Print the error as JSON if the command line asks for JSON and no document has been printed."""
    # Words after "--" are another program's. A check's findings are in the document that it has printed.
    if "--json" not in takewhile(lambda word: word != "--", words) or getattr(sys.stdout, "has_written", False):
        return
    try:
        print_as_json(error)
    except OSError:
        # The error is on stderr, and in the exit code.
        _drop_output()


def _drop_output() -> None:
    """Connect stdout to nothing: its reader has closed the pipe (`| head`), or its disk is full. Flushing at exit must
    not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _translated(error: Exception) -> AscendtuneError:
    """Our error for an exception that is not ours: what the machine caused, or a bug."""
    known_error: AscendtuneError | None = None
    match error:
        case EOFError():
            known_error = _damaged_bytecode(error)
        case OSError():
            known_error = uncaught_os_error(error)
        case ImportError():
            known_error = import_fault(error)
        case MemoryError():
            known_error = out_of_host_memory(error)
    return known_error or internal_error(error)


def _damaged_bytecode(error: EOFError) -> MachineError | None:
    """The error for a truncated compiled module, as from a full disk; None for the end of another file."""
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    path = frame.tb_frame.f_locals.get("bytecode_path") if frame else None
    if not isinstance(path, str):
        return None
    return MachineError(
        "a file that Python compiled is damaged",
        code="bytecode-damaged",
        remedy=f"rm {shlex.quote(path)}; Python writes it again. Check free space: a full disk cuts files",
        where=path,
    )


def _without_debug(words: list[str]) -> list[str]:
    """Remove `--debug`, which is accepted anywhere before `--`, and set the variable."""
    before = words[: words.index("--")] if "--" in words else words
    for path, entry in COMMANDS.items():
        name = path.split()
        if entry.starts_another and [word for word in before if word != "--debug"][: len(name)] == name:
            # After the command's name it may belong to the started program.
            before = before[: before.index(name[-1]) + 1]
    if "--debug" in before:
        os.environ[DEBUG] = "1"
    return [word for word in before if word != "--debug"] + words[len(before) :]


def _version(is_requested: bool) -> None:
    if is_requested:
        print(f"ascendtune {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Log more, and show tracebacks.")] = False,
) -> None:
    """Fine-tune LLMs on Ascend NPU, NVIDIA GPU and CPU from one recipe.

    \b
    ascendtune init --model MODEL --data rows.json
    ascendtune train recipe.yaml
    """


class _ReaderGone(Exception):
    """A BrokenPipeError, renamed because typer exits with 1 for it, which means that a check found something."""


class _LazyGroup(TyperGroup):
    """A group that lists its commands from the table and imports only the called one.

    `self.commands` has placeholders with the table's help texts. `resolve_command`, which calls, help and completion
    use, replaces the placeholder by the real command.
    """

    def __init__(self, *, prefix: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self._prefix = prefix
        for name, entry in COMMANDS.items():
            group, _, command = name.rpartition(" ")
            if group == prefix:
                self.commands[command] = TyperCommand(command, help=entry.help, rich_markup_mode=None)
            elif not prefix:
                self.commands.setdefault(group, _subgroup(group))

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)
        for parameter in parameters:
            # Typer's own flags default to None, for whose conversion it would import pydantic.
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self._prefix in DEFAULTS and args and args[0] not in {*self.commands, *_SETTINGS["help_option_names"]}:
            args = [DEFAULTS[self._prefix], *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and not self._prefix and not ctx.resilient_parsing and not args[0].startswith("-"):
            require_command(args[0], args[1:], list(self.commands))
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and not isinstance(command, _LazyGroup):
            command = _real(f"{self._prefix} {name}".strip(), name)
        return name, command, rest


def _subgroup(name: str) -> _LazyGroup:
    return _LazyGroup(prefix=name, name=name, help=GROUPS[name], no_args_is_help=True, rich_markup_mode=None)


def _real(path: str, name: str) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_SETTINGS)
    settings = {"allow_interspersed_args": False} if COMMANDS[path].starts_another else {}
    function = resolve_name(COMMANDS[path].target)
    _skip_readable_check(function)
    app.command(name, context_settings=settings)(function)
    command = get_command(app)
    use_common_names(command)
    given = os.environ.get("COLUMNS", "")
    columns = terminal_width(sys.stdout) or (int(given) if given.isdecimal() else 0) or 80
    lines = (command.help or "").split("\n")
    command.help = "\n".join(_example(line, columns) if line.startswith(_EXAMPLES) else line for line in lines)
    return command


_EXAMPLES = ("ascendtune ", "export ", "echo ", "kubectl ")


def _example(line: str, columns: int, indent: str = "") -> str:
    """An example of a help text, continued with backslashes if it is wider than the terminal, so that it can be run.

    Args:
        columns: width of the terminal; the help text is indented by two.
    """
    text = indent + line
    cut = text.rfind(" ", len(indent) + 1, columns - 4)
    if len(text) <= columns - 2 or cut < 0:
        return text
    return f"{text[:cut]} \\\n" + _example(text[cut + 1 :], columns, "  ")


def _skip_readable_check(function: Any) -> None:
    """Disable Typer's check for readable paths: a missing permission is exit code 3 here, not a usage error (2)."""
    hints = get_type_hints(function, include_extras=True)
    for hint in hints.values():
        for parameter in getattr(hint, "__metadata__", ()):
            parameter.readable = False
    function.__annotations__ = hints


def _root() -> Any:
    app = typer.Typer(cls=_LazyGroup, no_args_is_help=True, rich_markup_mode=None, context_settings=_SETTINGS)
    app.callback()(_options)
    return get_command(app)


_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
