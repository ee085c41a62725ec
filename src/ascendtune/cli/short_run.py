"""A training in a process of its own, for commands that measure it: `ascendtune profile` and `ascendtune bench`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ascendtune.cli.align_repeat import end_training
from ascendtune.core.errors import AscendtuneError
from ascendtune.core.log import say
from ascendtune.core.process import Child
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe

_LOOK_SECONDS = 1.0


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C, while a training ran that has ended since."""

    def __init__(self, run: Path | None) -> None:
        super().__init__()
        self.run = run
        """Its run directory; None if none was made."""


def train_briefly(
    recipe: Path,
    overrides: list[str],
    *,
    devices: int | None = None,
    device_ids: str | None = None,
    log: Path | None = None,
    watch: Callable[[RunDir], None] | None = None,
) -> tuple[int, Path | None]:
    """Train `recipe` with `ascendtune train`; returns the exit code and the run directory, None if none was made.

    On Ctrl-C, and on every other exception, the training has ended before this function does.

    Args:
        log: the file that its output is appended to (default: what it warns of goes to stderr).
        watch: called about once a second, with the run, while the run trains.

    Raises:
        TrainingInterrupted: Ctrl-C.
    """
    words = ["train", str(recipe), "-q", *overrides]
    words += ["--devices", str(devices)] if devices else []
    words += ["--device-ids", device_ids] if device_ids else []
    parent = Recipe.load(recipe, overrides).run_directory().parent
    earlier = set(parent.glob("*/run.json"))
    argv = [sys.executable, "-m", "ascendtune", *words]
    # The place of its model is not for the user.
    with (log or Path(os.devnull)).open("ab") as output:
        child = Child(argv, os.environ, stdout=output.fileno(), stderr=log)
    run: Path | None = None
    try:
        while (code := child.wait(_LOOK_SECONDS if watch else None)) is None:
            run = run or run_started_by(child.pid, set(parent.glob("*/run.json")) - earlier)
            if watch and run:
                watch(RunDir(run))
    except KeyboardInterrupt as stop:
        # A profile is still written, which may take a while.
        say("stopping the training")
        end_training(child)
        raise TrainingInterrupted(run or run_started_by(child.pid, set(parent.glob("*/run.json")) - earlier)) from stop
    except BaseException:
        end_training(child)
        raise
    return code, run or run_started_by(child.pid, set(parent.glob("*/run.json")) - earlier)


def run_started_by(pid: int, records: Iterable[Path]) -> Path | None:
    """The run that this process of this host has made; others may start runs of the same name at the same time.

    Args:
        records: run.json of the runs that are new.
    """
    for path in records:
        with suppress(AscendtuneError, OSError):
            record = RunDir(path.parent).read()
            if (record.get("started_by"), record.get("host")) == (pid, socket.gethostname()):
                return path.parent
    return None
