"""Stop signals of a job in the foreground: Ctrl-C ends it after a checkpoint, a second at once; Ctrl-Z pauses it."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

from ascendtune.core.interrupts import stop_signals
from ascendtune.core.log import say_in_handler


class StopSignals:
    """Records signals inside its context; the loop that runs the job reads `first` and `again`.

    Args:
        keeps_checkpoints: whether stopping includes writing a checkpoint.
        can_pause: whether its processes can be stopped as one, without loss.
    """

    def __init__(self, *, keeps_checkpoints: bool, can_pause: bool) -> None:
        self._announcement = "stopping after a checkpoint" if keeps_checkpoints else "stopping"
        self._can_pause = can_pause
        self.first: signal.Signals | None = None
        self.again = False
        self.pause = False
        """The loop that has paused the job resets it."""

    def __enter__(self) -> Self:
        self._old = {number: signal.signal(number, self._note) for number in stop_signals()}
        self._old[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._note_pause)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.first is not None:
            if not self.again:
                say_in_handler("stopping at once")
            self.again = True
            return
        # A terminal that closes is treated as a scheduler that ends the job.
        self.first = signal.Signals(number) if number != signal.SIGHUP else signal.SIGTERM
        say_in_handler(f"{self._announcement}; once more stops now")

    def _note_pause(self, number: int, frame: FrameType | None) -> None:
        if self._can_pause:
            self.pause = True
        else:
            say_in_handler("Ctrl-Z is ignored: the other hosts would time out and stop the job")
