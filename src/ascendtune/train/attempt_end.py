"""Why an attempt ended, for run.json. Free of torch: Ctrl-C may come while torch is imported."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from ascendtune.core import log
from ascendtune.core.checkpoint_names import has_finished
from ascendtune.core.errors import AscendtuneError, Stopped
from ascendtune.core.exit_cause import exit_cause_of_worker, stopped_at_once
from ascendtune.core.locks import file_lock
from ascendtune.core.rundir import RunDir, State


def note_end(run: RunDir, before: dict[str, Any], error: BaseException, rank: int) -> None:
    """Write the cause to run.json. The first rank that knows a cause writes it: errors of later ranks follow from it.

    A run that had finished before keeps that state.

    Args:
        before: run.json, as it was when this process claimed the run.
    """
    if has_finished(before):
        return
    try:
        if isinstance(error, KeyboardInterrupt):
            error = stopped_at_once(run.checkpoint_steps(), signal.SIGINT)
        with file_lock(run.path / ".cause.lock", wait=True):
            if len(run.read()["attempts"]) == len(before["attempts"]):
                # This attempt ended before the ranks met: run.json describes an earlier attempt.
                host, ranks = socket.gethostname(), int(os.environ.get("WORLD_SIZE", "1"))
                run.begin_attempt({"host": host, "hosts": [host], "world_size": ranks})
            if run.read()["state"] in ("created", "running"):
                state: State = "stopped" if isinstance(error, Stopped) else "failed"
                run.end_attempt(state, exit_cause_of_worker(error, rank))
    except (OSError, AscendtuneError) as second:
        # The failure of the disk that holds run.json may be what ended the run.
        log.warn(f"run.json could not be updated: {second}")
