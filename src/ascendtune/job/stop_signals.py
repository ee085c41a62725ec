"""What the user asks of a job that runs in front: Ctrl-C once ends it after a checkpoint, twice ends it at once, Ctrl-Z
pauses it."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

from ascendtune.core.log import say


class StopSignals:
    """Notes signals while it is entered; whoever runs the job looks at `first` and `again`.

    Args:
        keeps_checkpoints: what the user asks will take until the next one is written.
        can_pause: its processes can be stopped as one, and lose nothing by it.
    """

    def __init__(self, *, keeps_checkpoints: bool, can_pause: bool) -> None:
        self._how = "stopping after a checkpoint" if keeps_checkpoints else "stopping"
        self._can_pause = can_pause
        self.first: signal.Signals | None = None
        self.again = False
        self.pause = False
        """Whoever has done it sets this back."""

    def __enter__(self) -> Self:
        noted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._old = {number: signal.signal(number, self._note) for number in noted}
        self._old[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._note_pause)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.first is not None:
            self.again = True
            return
        # The terminal that goes away is like a scheduler that takes the machine back.
        self.first = signal.Signals(number) if number != signal.SIGHUP else signal.SIGTERM
        say(f"{self._how}; once more stops now")

    def _note_pause(self, number: int, frame: FrameType | None) -> None:
        if self._can_pause:
            self.pause = True
        else:
            say("Ctrl-Z is ignored: the other hosts would time out and stop the job")
