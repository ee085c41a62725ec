"""Ctrl-C and SIGTERM: the first asks for a checkpoint and an end, the second Ctrl-C ends at once."""

from __future__ import annotations

import signal
from types import FrameType

from ascendtune.core.log import say


class StopRequest:
    """Notes signals between `listen` and `ignore`; the loop looks at it after every step."""

    def __init__(self) -> None:
        self.signal_number = 0
        """The first signal that came; 0 when none did."""
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup a hang-up is to be ignored, and stays ignored.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)

    def ignore(self) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.signal_number:
            # A terminal that has gone asks for the same as SIGTERM does.
            self.signal_number = signal.SIGTERM if number == signal.SIGHUP else number
            say(f"{signal.Signals(number).name}: stopping, with a checkpoint (Ctrl-C again: at once)")
