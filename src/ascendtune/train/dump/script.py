"""Run a Python script with its training recorded: `python -m ascendtune.train.dump.script SCRIPT ARGUMENTS`.

`ascendtune align record` starts this in place of the script or launcher, and so do recorded processes for those that
they start. The variable ASCENDTUNE_RECORD holds the request.
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
from ascendtune.train.dump.children import followed_children
from ascendtune.train.dump.request import VARIABLE, RecordRequest


def main(arguments: list[str]) -> None:
    """Run `arguments`: a script with its arguments, or `-m` and a module with its."""
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    with _recorded(command_without_secrets(arguments)):
        if is_module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            # As Python does for a script.
            sys.path[0] = str(Path(arguments[0]).resolve().parent)
            runpy.run_path(arguments[0], run_name="__main__")


def record_spawned(**numbers: Any) -> None:
    """What a process that `multiprocessing` spawns runs instead of its `spawn_main`, with the same arguments."""
    with _recorded(["multiprocessing", f"process {os.getpid()}"]):
        spawn_main(**numbers)


def record_fork_server(*numbers: Any, **named: Any) -> None:
    """What the fork server of `multiprocessing` runs instead of its `main`: the processes that it forks have hooks."""
    with _recorded(["multiprocessing", f"process {os.getpid()}"]):
        forkserver.main(*numbers, **named)


def record_this_process(words: list[str]) -> None:
    """Record this process, which runs `words`, from now until it ends: `startup/sitecustomize.py` calls it."""
    recorded = ExitStack()
    recorded.enter_context(_recorded(command_without_secrets(words)))
    atexit.register(recorded.close)
    show = sys.excepthook

    def show_own_in_one_line(kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, AscendtuneError):
            log.error(str(error))
        else:
            show(kind, error, traceback)

    sys.excepthook = show_own_in_one_line


@contextmanager
def _recorded(command: list[str]) -> Iterator[None]:
    """Context in which this process is recorded as `command`, and those that it starts."""
    log.set_up()
    try:
        from ascendtune.train.dump.recording import Recording
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
