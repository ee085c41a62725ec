"""Runs a Python script and records its training: `python -m ascendtune.train.recording.script SCRIPT ARGUMENTS`.

`ascendtune align record` starts this in place of the script or launcher, and so do recorded processes for those that
they start. The request is in the environment variable ASCENDTUNE_RECORD.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.spawn import spawn_main
from pathlib import Path
from typing import Any

from ascendtune.core import log
from ascendtune.core.errors import AscendtuneError, MachineError
from ascendtune.core.mask import command_without_secrets
from ascendtune.train.recording.children import followed_children
from ascendtune.train.recording.request import VARIABLE, RecordRequest


def main(arguments: list[str]) -> None:
    """Run a script with its arguments, or `-m` and a module with its arguments."""
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    with _recording(command_without_secrets(arguments)):
        if is_module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            # As Python does for a script.
            sys.path[0] = str(Path(arguments[0]).resolve().parent)
            runpy.run_path(arguments[0], run_name="__main__")


def record_spawned(**numbers: Any) -> None:
    """Replaces `spawn_main` in a process that `multiprocessing` spawns; called with the same arguments."""
    with _recording(["multiprocessing", f"process {os.getpid()}"]):
        spawn_main(**numbers)


def record_fork_server(*numbers: Any, **named: Any) -> None:
    """Replaces `main` in the fork server of `multiprocessing`: processes that it forks have the hooks."""
    with _recording(["multiprocessing", f"process {os.getpid()}"]):
        forkserver.main(*numbers, **named)


def record_this_process(command: list[str]) -> None:
    """Record this process, started by `command`, until it ends. Called by `startup/sitecustomize.py`."""
    stack = ExitStack()
    stack.enter_context(_recording(command_without_secrets(command)))
    atexit.register(stack.close)
    show = sys.excepthook

    def show_in_one_line(kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, AscendtuneError):
            log.error(str(error))
        else:
            show(kind, error, traceback)

    sys.excepthook = show_in_one_line


@contextmanager
def _recording(command: list[str]) -> Iterator[None]:
    """Context in which this process is recorded as `command`, and the processes that it starts."""
    log.set_up()
    try:
        from ascendtune.train.recording.recording import Recording
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        missing = MachineError(
            f"{sys.executable} has no torch, which the recorded training needs",
            code="package-missing",
            remedy="start the command with the Python that has torch and ascendtune",
        )
        log.error(str(missing))
        sys.exit(missing.exit_code)
    request = RecordRequest.from_json(os.environ[VARIABLE])
    os.environ[VARIABLE] = replace(request, is_child=True).to_json()
    try:
        with followed_children(), Recording(request, command).active():
            yield
    except AscendtuneError as error:
        log.error(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
