"""Signals that stop a training after the current step, and the agreement of all ranks on them. Free of torch."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from ascendtune.core.errors import Stopped
from ascendtune.core.interrupts import LAUNCHER_TOKEN, stop_signals
from ascendtune.core.log import say_in_handler
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe

_PASSED_ON_SECONDS = 2.0
"""Time in which a launcher passes a signal on."""


class StopRequest:
    """Ctrl-C and SIGTERM: the first ends the run with a checkpoint, a second Ctrl-C ends it at once.

    It handles signals while `listening` is entered; the loop checks it after each step.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        """The first signal that was received; 0 if none was."""
        self.has_failed = False
        """Whether the work ends already: torchrun stops all ranks when the first of them has failed."""
        self.saved = ""
        """The result that the work saves when it is stopped, for the message after a signal."""
        self._since = 0.0

    @contextmanager
    def listening(self, saved: str) -> Iterator[None]:
        """Handle signals within the context. In a thread (`fit`, called by a web page) they are left to the caller.

        Args:
            saved: see `StopRequest.saved`.
        """
        self.saved = saved
        before: dict[signal.Signals, signal._HANDLER] = {}
        is_main = threading.current_thread() is threading.main_thread()
        for number in stop_signals() if is_main else ():
            before[number] = signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number and number == signal.SIGINT:
            # srun sends Ctrl-C to every process of a job, and the launcher, which is one of them, passes it on again.
            if LAUNCHER_TOKEN in os.environ and time.monotonic() - self._since < _PASSED_ON_SECONDS:
                return
            raise KeyboardInterrupt
        if not self.signal_number:
            self._since = time.monotonic()
            # A closed terminal is treated like SIGTERM.
            self.signal_number = signal.SIGTERM if number == signal.SIGHUP else number
            name = "SIGHUP, treated as SIGTERM" if number == signal.SIGHUP else signal.Signals(number).name
            if not self.has_failed:
                say_in_handler(f"{name}: stopping, with {self.saved} (Ctrl-C again: at once)")


def stop_flags(signal_number: int) -> list[float]:
    """This rank's summands for a sum over ranks, from which every rank derives a signal that reached any of them."""
    return [float(signal_number == signal.SIGINT), float(signal_number == signal.SIGTERM)]


def agreed_signal(flags: Sequence[float]) -> int:
    """The signal in the sums of `stop_flags`; 0 if there is none."""
    interrupts, terms = flags
    return signal.SIGTERM if terms else signal.SIGINT if interrupts else 0


def stopped_after(step: int, signal_number: int, run: RunDir, recipe: Recipe) -> Stopped:
    """The error of `run`, which a signal stopped after `step`, with a checkpoint."""
    extra = "" if recipe.checkpoint.resume == "auto" else " with checkpoint.resume=auto"
    return Stopped(
        f"stopped by {signal.Signals(signal_number).name} after step {step}, with a checkpoint",
        remedy=f"run the same command again{extra} to continue from there",
        signal_number=signal_number,
        where=run.checkpoint(step),
        step=step,
        checkpoint_step=step,
    )
