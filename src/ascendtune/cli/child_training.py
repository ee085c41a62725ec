"""Trainings as child processes, for commands that measure or compare them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path

from ascendtune.core.errors import AscendtuneError
from ascendtune.core.files import open_regular
from ascendtune.core.log import say
from ascendtune.core.process import Child
from ascendtune.core.rundir import RunDir
from ascendtune.core.terminal_text import plain
from ascendtune.recipe.recipe import Recipe

_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 30.0
"""Time for ranks to end after a second Ctrl-C, before they are killed."""
_TAIL_BYTES = 16 << 10


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during a training, which has ended since."""

    def __init__(self, run: Path | None) -> None:
        super().__init__()
        self.run = run
        """Its run directory; None if none was created."""


def train_briefly(
    recipe: Path,
    overrides: list[str],
    *,
    devices: int | None = None,
    device_ids: str | None = None,
    log: Path | None = None,
    watch: Callable[[RunDir], None] | None = None,
) -> tuple[int, Path | None]:
    """Train `recipe` with `ascendtune train`; returns the exit code and the run directory, None if none was created.

    On Ctrl-C, and on every other exception, the training has ended before this function returns.

    Args:
        log: the file to which its output is appended (default: its warnings go to stderr).
        watch: called about once a second, with the run, while the run trains.

    Raises:
        TrainingInterrupted: Ctrl-C.
    """
    words = ["train", str(recipe), "-q", *overrides]
    words += ["--devices", str(devices)] if devices else []
    words += ["--device-ids", device_ids] if device_ids else []
    parent = Recipe.load(recipe, overrides).run_directory().parent
    earlier = set(parent.glob("*/run.json"))
    argv = [sys.executable, "-P", "-m", "ascendtune", *words]
    # The path of its model is not of interest to the user.
    with (log or Path(os.devnull)).open("ab") as output:
        child = Child(argv, os.environ, stdout=output.fileno(), stderr=log)

    def started() -> Path | None:
        return run_started_by(child.pid, set(parent.glob("*/run.json")) - earlier)

    run: Path | None = None
    try:
        while (code := child.wait(_LOOK_SECONDS if watch else None)) is None:
            run = run or started()
            if watch and run:
                watch(RunDir(run))
    except KeyboardInterrupt as stop:
        # A profile is still written, which may take a while.
        say("stopping the training")
        end_training(child)
        raise TrainingInterrupted(run or started()) from stop
    except BaseException:
        end_training(child)
        raise
    return code, run or started()


def run_started_by(pid: int, records: Iterable[Path]) -> Path | None:
    """The run that the process `pid` of this host has created; others may start runs of the same name at the same time.

    Args:
        records: run.json of the new runs.
    """
    for path in records:
        with suppress(AscendtuneError, OSError):
            record = RunDir(path.parent).read()
            if (record.get("started_by"), record.get("host")) == (pid, socket.gethostname()):
                return path.parent
    return None


def train_again(run: Path, recipe: Path, *, ranks: int, log: Path) -> int:
    """Train `recipe` with `ascendtune train` where `run` was started; its output goes to `log`. Returns the exit code.

    On Ctrl-C, and on every other exception, the training has ended before this function returns.

    Args:
        recipe: an absolute path.
        ranks: number of devices.
    """
    started_in = Path(str(RunDir(run).read().get("directory") or ""))
    words = ("train", str(recipe), "--devices", str(ranks))
    # The working directory comes from a file: Python must not import modules from there.
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    with log.open("ab") as output, chdir(started_in if started_in.is_dir() else Path.cwd()):
        child = Child([sys.executable, "-P", "-m", "ascendtune", *words], env, stdout=output.fileno(), stderr=log)
        try:
            code = child.wait()
        except BaseException:
            end_training(child)
            raise
    assert code is not None
    return code


def end_training(child: Child) -> None:
    """End a training that this process has started, as Ctrl-C does; further Ctrl-C have no effect meanwhile."""
    with _ignoring_interrupts():
        # The first signal requests a checkpoint, the second ends at once.
        for _ in range(2):
            child.signal(signal.SIGINT)
            if child.wait(1.0) is not None:
                return
        if child.wait(_GRACE_SECONDS) is None:
            child.signal(signal.SIGKILL)
            child.wait(_GRACE_SECONDS)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def error_in(log: Path) -> str:
    """The error of a failed training, from the end of its output; without control characters."""
    with open_regular(log) as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = [plain(line.strip()) for line in file.read(_TAIL_BYTES).decode(errors="replace").splitlines()]
    nonempty = [line for line in lines if line]
    errors = [line.removeprefix("error: ") for line in nonempty if line.startswith("error: ")]
    return (errors or nonempty or ["it printed nothing"])[-1]
