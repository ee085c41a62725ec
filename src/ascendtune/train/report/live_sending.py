"""Sends a run to trackers while it trains, in a separate process, for which the worker never waits.

    python -m ascendtune.train.report.live_sending RUN TRACKER PROJECT [HOST]

The process reads the lines that the worker appends to files of the run directory; these are the queue. Its stdin is
closed when the training ends. If a tracker is down, the process tries again later; steps that are missing at the end
are sent by `ascendtune track send`. The log is `RUN/log/track_TRACKER.log`.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from ascendtune.core import log
from ascendtune.core.errors import AscendtuneError
from ascendtune.core.log import say, warn
from ascendtune.core.mask import without_secrets
from ascendtune.core.process import LoggedChild
from ascendtune.core.records import parsed_record
from ascendtune.core.rundir import RunDir
from ascendtune.core.tail import Tail
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.report.callback import Callback, RunFacts
from ascendtune.train.report.sending import Points, Sending, exclusive_sending, sent_step
from ascendtune.train.report.trackers import Destination

_EVERY_SECONDS = 5.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 30.0, 600.0
_LAST_SECONDS = 20
"""Time for sending the last steps, after the training."""
_OFFLINE_MODES = {
    "wandb": ("WANDB_MODE", ("offline", "disabled", "dryrun")),
    "swanlab": ("SWANLAB_MODE", ("offline", "local", "disabled")),
}


def destinations_of(recipe: Recipe) -> list[Destination]:
    return [Destination(name, recipe.track.project, recipe.track.host) for name in recipe.track.send_to]


class LiveSending(Callback):
    """Starts the process when training starts, and ends it when training ends."""

    def __init__(self, run: RunDir, destination: Destination) -> None:
        self._run, self._destination = run, destination
        self._process: LoggedChild | None = None

    def on_start(self, facts: RunFacts) -> None:
        destination = self._destination
        variable, modes = _OFFLINE_MODES.get(destination.tracker, ("", ()))
        if os.environ.get(variable, "").lower() in modes:
            say(f"{variable} is {os.environ[variable]}: later, {self._command()}")
            return
        # -P: the working directory may contain a module with the name of a client, which must not be run.
        argv = [sys.executable, "-P", "-m", "ascendtune.train.report.live_sending"]
        argv += [
            str(self._run.path.absolute()),
            destination.tracker,
            destination.project,
            *([destination.host] if destination.host else []),
        ]
        output = self._run.logs / f"track_{destination.tracker}.log"
        try:
            self._process = LoggedChild(argv, os.environ, output=output)
        except AscendtuneError as error:
            warn(f"the run is not sent to {destination.tracker} while it trains: {error}")

    def on_end(self) -> None:
        if self._process is None:
            return
        self._process.close(_LAST_SECONDS + 2.0)
        last, sent = self._run.last_step(), sent_step(self._run, self._destination)
        if last is not None and sent < last:
            arrived = f"it has steps up to {sent}" if sent >= 0 else "it has no step"
            warn(f"{self._destination.tracker} does not have the whole run ({arrived}); {self._command()}")

    def _command(self) -> str:
        host = f" --host {shlex.quote(self._destination.host)}" if self._destination.host else ""
        return f"ascendtune track send {shlex.quote(str(self._run))} --to {self._destination.tracker}{host}"


class _Follower:
    def __init__(self, run: RunDir, destination: Destination) -> None:
        self._run, self._destination = run, destination
        self._points = Points(run.read()["attempts"])
        self._tails = {"train": Tail(run.metrics, 0), "eval": Tail(run.evaluations, 0)}
        self._unsent: list[Any] = []
        self._sending: Sending | None = None

    def follow(self) -> None:
        """Send until stdin ends; then send the remaining steps, unless the tracker is down."""
        wait, is_down = _EVERY_SECONDS, False
        while not select.select([sys.stdin], [], [], wait)[0]:
            try:
                self._send(with_last=False)
                wait, is_down = _EVERY_SECONDS, False
            except AscendtuneError as error:
                wait = max(_FIRST_WAIT_SECONDS, min(2 * wait, _LONGEST_WAIT_SECONDS))
                self._sending, is_down = None, True
                warn(f"{without_secrets(str(error))}; the next try is in {wait:.0f} s")
        if is_down:
            return
        # A client that hangs is ended with the process.
        signal.alarm(_LAST_SECONDS)
        self._send(with_last=True)
        if self._sending is not None:
            state = self._run.read()["state"]
            self._sending.close(state if state in ("finished", "failed") else "stopped")

    def _send(self, *, with_last: bool) -> None:
        for kind, tail in self._tails.items():
            for line in tail.lines():
                self._points.add(kind, parsed_record(line, kind))  # type: ignore[arg-type]
        self._unsent += self._points.take(with_last=with_last)
        if not self._unsent:
            return
        if self._sending is None:
            self._sending = Sending(self._run, self._destination)
        self._sending.send(self._unsent)
        self._unsent = []


def main(arguments: list[str]) -> int:
    """Follow the run until stdin ends."""
    log.set_up()
    # SIGTERM is sent to all processes of a job; this one ends after the worker.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    directory, tracker, project, *host = arguments
    run, destination = RunDir(Path(directory)), Destination(tracker, project, host[0] if host else None)  # type: ignore[arg-type]
    try:
        with exclusive_sending(run, destination):
            _Follower(run, destination).follow()
    except AscendtuneError as error:
        warn(without_secrets(str(error)))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
