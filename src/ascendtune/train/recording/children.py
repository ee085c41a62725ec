"""Records processes that a recorded program starts, such as ranks of a launcher, in the same way. Free of torch.

Included are commands of the same Python (`subprocess`, `os.exec*`) and processes of `multiprocessing`: forked ones have
the hooks, spawned ones and the fork server install them. The request is in an environment variable, which children
inherit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import spawn, util
from pathlib import Path
from typing import Any

from ascendtune.core.process import commands_changed
from ascendtune.train.recording.command import recorded_command
from ascendtune.train.recording.request import VARIABLE

_SPAWNED = "from multiprocessing.spawn import spawn_main; spawn_main("
_RECORDED = "from ascendtune.train.recording.script import record_spawned; record_spawned("
_FORK_SERVER = "from multiprocessing.forkserver import main; main("
_RECORDED_FORK_SERVER = "from ascendtune.train.recording.script import record_fork_server; record_fork_server("


@contextmanager
def followed_children() -> Iterator[None]:
    """Context in which processes that this one starts are recorded."""
    change = partial(recorded_command, directory=Path(sys.executable).absolute().parent)
    command_line: Any = spawn.get_command_line
    start: Any = util.spawnv_passfds

    def recorded_line(**numbers: Any) -> list[Any]:
        return [
            word.replace(_SPAWNED, _RECORDED) if isinstance(word, str) else word for word in command_line(**numbers)
        ]

    def start_recorded(path: Any, args: Any, passfds: Any) -> Any:
        # Changes the start of the fork server; the text of the resource tracker is different.
        arguments = [
            each.replace(_FORK_SERVER, _RECORDED_FORK_SERVER) if isinstance(each, str) else each for each in args
        ]
        return start(path, arguments, passfds)

    spawn.get_command_line = recorded_line
    util.spawnv_passfds = start_recorded
    try:
        with commands_changed(change, {VARIABLE: os.environ[VARIABLE]}):
            yield
    finally:
        spawn.get_command_line = command_line
        util.spawnv_passfds = start
