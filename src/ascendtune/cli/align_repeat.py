"""A run that is trained again in a process of its own, for `ascendtune align bisect`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from ascendtune.core.files import open_regular
from ascendtune.core.process import Child
from ascendtune.core.rundir import RunDir
from ascendtune.core.terminal_text import plain

_GRACE_SECONDS = 30.0
"""For ranks to end after a second Ctrl-C, before they are killed."""
_TAIL_BYTES = 16 << 10


def train_again(run: Path, recipe: Path, *, ranks: int, log: Path) -> int:
    """Train `recipe` with `ascendtune train` where `run` was started; its output goes to `log`. Returns the exit code.

    On Ctrl-C, and on every other exception, the training has ended before this function does.

    Args:
        recipe: an absolute path.
        ranks: number of devices.
    """
    started_in = Path(str(RunDir(run).read().get("directory") or ""))
    words = ("train", str(recipe), "--devices", str(ranks))
    # The working directory is read from a file: Python must not import modules from there.
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    with log.open("ab") as output, chdir(started_in if started_in.is_dir() else Path.cwd()):
        child = Child([sys.executable, "-m", "ascendtune", *words], env, stdout=output.fileno(), stderr=log)
        try:
            code = child.wait()
        except BaseException:
            end_training(child)
            raise
    assert code is not None
    return code


def end_training(child: Child) -> None:
    """End a training that this process has started, as Ctrl-C does; more of them meanwhile change nothing."""
    with _ignoring_interrupts():
        # The first signal asks for a checkpoint, the second ends at once.
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
    """The error of a training that failed, from the end of its output; without control characters."""
    with open_regular(log) as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = [plain(line.strip()) for line in file.read(_TAIL_BYTES).decode(errors="replace").splitlines()]
    said = [line for line in lines if line]
    errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    return (errors or said or ["it printed nothing"])[-1]
