"""The program of one rank: `python -m ascendtune.check.comm.worker KIND DIRECTORY WORK`, started by torchrun.

WORK is JSON: {"task": a name in `TASKS`, "timeout_seconds": …, and the parameters of the task}. Notes go to DIRECTORY.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from ascendtune.check.comm.notes import is_echo, notes_path
from ascendtune.check.comm.timing import time_pairs, time_sizes
from ascendtune.check.comm.trial import run_trials
from ascendtune.check.comm.world import AbsentRanksError, World
from ascendtune.core.records import LineWriter
from ascendtune.machine.torch_backend.find import open_device
from ascendtune.machine.visible import Kind

TASKS: dict[str, Callable[[World, dict[str, Any]], None]] = {
    "test": run_trials,
    "sizes": time_sizes,
    "pairs": time_pairs,
}

_ECHO_SECONDS = 1.0
"""A rank that has lost its peer waits this long before it exits: torchrun then reports the peer first."""


def main(kind: str, directory: str, work: str) -> int:
    """Join, run the task, leave; return the exit code. Errors are written to this rank's notes."""
    # Ctrl-C ends a rank without a message: there is nothing to save.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    notes = LineWriter(notes_path(Path(directory), int(os.environ["RANK"])))
    task = json.loads(work)
    try:
        notes.write({"at": "opening the device"})
        device = open_device(cast("Kind", kind), int(os.environ["LOCAL_RANK"]))
        device.activate()
        world = World.join(device, notes, timedelta(seconds=task["timeout_seconds"]))
        TASKS[task["task"]](world, task)
        world.leave()
    except AbsentRanksError as error:
        notes.write({"absent": error.ranks})
        return 1
    except Exception as error:  # noqa: BLE001  # libraries raise any exception; the command reports it
        message = f"{type(error).__name__}: {error}"
        notes.write({"error": message})
        if is_echo(message):
            time.sleep(_ECHO_SECONDS)
        return 1
    notes.write({"done": True})
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip the libraries' destructors: after a failure they would wait for ranks that are gone.
    os._exit(code)
