"""Ctrl-C and SIGTERM: the first ends the run with a checkpoint, a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from ascendtune.core.log import say


class StopRequest:
    """Notes signals while it listens; the loop checks it after every step."""

    def __init__(self) -> None:
        self.signal_number = 0
        """The first signal that came; 0 when none did."""
        self._kept = ""

    @contextmanager
    def listening(self, kept: str) -> Iterator[None]:
        """Note signals while the context lasts.

        Args:
            kept: what the work keeps when it is stopped, for the message when a signal comes.
        """
        self._kept = kept
        before: dict[signal.Signals, signal._HANDLER] = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup a hang-up is to be ignored, and stays ignored.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.signal_number:
            # A closed terminal means the same as SIGTERM.
            self.signal_number = signal.SIGTERM if number == signal.SIGHUP else number
            say(f"{signal.Signals(number).name}: stopping, with {self._kept} (Ctrl-C again: at once)")


def flags_of(signal_number: int) -> list[float]:
    """Summands of a rank in a sum over ranks, from which every rank knows a signal that reached any of them."""
    return [float(signal_number == signal.SIGINT), float(signal_number == signal.SIGTERM)]


def signal_of(flags: Sequence[float]) -> int:
    """The signal in the sums of `flags_of`; 0 when none came."""
    interrupts, terms = flags
    return signal.SIGTERM if terms else signal.SIGINT if interrupts else 0
