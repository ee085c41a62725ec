"""Rewrites commands that train so that the training is recorded. Free of torch."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ascendtune.train.recording.request import PROGRAM, VARIABLE, RecordRequest

_PREFIXES = frozenset(
    {"chrt", "env", "ionice", "nice", "nohup", "numactl", "setsid", "stdbuf", "taskset", "time", "timeout"}
)
"""Programs that execute the command after their options."""
_INTERPRETER = re.compile(r"python(\d(\.\d+)?)?")
_SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "sh", "zsh"})
"""Their arguments may be scripts; programs that they start are recorded by `startup/sitecustomize.py`."""
_STARTUP = Path(__file__).with_name("startup")
"""Each Python program with this directory in PYTHONPATH runs its `sitecustomize` at the start."""
_TAKES_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Options of Python whose value is a separate word."""


def recorded_command(command: Sequence[str], directory: Path | None = None) -> list[str] | None:
    """`command` with its Python program run by `train.recording.script`; None if it runs none.

    The program may be a script, `-m` and a module, or a console script of Python such as torchrun or deepspeed.

    Args:
        directory: required directory of the interpreter or console script; without it both may be anywhere, and any
            launcher may precede them, such as srun.
    """
    if not command or PROGRAM in command:
        return None
    has_prefix = directory is None or Path(command[0]).name in _PREFIXES
    for at, word in enumerate(command if has_prefix else command[:1]):
        if Path(word).name in _SHELLS:
            return None
        if _INTERPRETER.fullmatch(Path(word).name):
            program = _program_after(command, at + 1)
            if program is None or not _is_in(directory, word):
                return None
            return [*command[:program], "-m", PROGRAM, *command[program:]]
        script = _python_script(word)
        if script is not None:
            path, interpreter = script
            if not _is_in(directory, str(path)):
                return None
            return [*command[:at], interpreter, "-m", PROGRAM, str(path), *command[at + 1 :]]
    files = (at for at, word in enumerate(command) if at and word.endswith(".py"))
    first = next(files, None) if directory is None else None
    return None if first is None else [*command[:first], "-m", PROGRAM, *command[first:]]


def runs_shell(command: Sequence[str]) -> bool:
    """Whether `command` starts a shell, by name or as a script's interpreter: a shell may start Python programs."""
    return any(Path(word).name in _SHELLS for word in command) or _begin_of(command[0]).startswith(b"#!")


def environment_of_recorded(env: Mapping[str, str], request: RecordRequest) -> dict[str, str]:
    """`env` in which all programs of this Python are recorded, however they are started."""
    path = os.pathsep.join(filter(None, (str(_STARTUP), env.get("PYTHONPATH"))))
    return {**env, VARIABLE: request.to_json(), "PYTHONPATH": path}


def _program_after(command: Sequence[str], at: int) -> int | None:
    """Index of the program after an interpreter: its file, or `-m`; None if there is none."""
    while at < len(command):
        word = command[at]
        if not word.startswith("-") or word == "-m":
            return at
        if word == "-" or re.fullmatch("-[A-Za-z]*[cm]", word):
            return None
        at += 2 if word in _TAKES_VALUE else 1
    return None


def _is_in(directory: Path | None, program: str) -> bool:
    path = shutil.which(program)
    return directory is None or (path is not None and Path(path).absolute().parent == directory)


def _python_script(program: str) -> tuple[Path, str] | None:
    """The file of a console script run by Python, and its interpreter; None for other files."""
    begin = _begin_of(program).split(b"\n")
    if not begin[0].startswith(b"#!") or not any(b"python" in line for line in begin[:2]):
        return None
    path = Path(shutil.which(program) or program)
    interpreter = Path(begin[0][2:].decode(errors="replace").strip())
    if not _INTERPRETER.fullmatch(interpreter.name) or not interpreter.is_file():
        # `#!/usr/bin/env python3`, or a shell if the path is too long for the first line.
        interpreter = path.with_name("python")
    return (path, str(interpreter)) if interpreter.is_file() else None


def _begin_of(program: str) -> bytes:
    """The first bytes of the file of `program`; empty if it cannot be read."""
    try:
        with Path(shutil.which(program) or program).open("rb") as file:
            return file.read(400)
    except OSError:
        return b""
