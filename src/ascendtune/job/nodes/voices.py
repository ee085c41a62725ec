"""What the ranks of a node say, on its way to whoever started them: rank 0's streams, and the others' logs by line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ascendtune.core.tail import Tail
from ascendtune.job.launcher import LOOK_EVERY_SECONDS

_LINE_BYTES = 64 * 1024


class Voices:
    """Made before the ranks start, so that nothing is missed.

    Args:
        say: takes {"out": text}, {"err": text} or {"rank": N, "line": text}; called from several threads.
        ranks: those that speak into files of `logs`.

    Attributes:
        out, err: descriptors to start the ranks with.
    """

    def __init__(self, say: Callable[..., None], logs: Path, ranks: Sequence[int]) -> None:
        self._say = say
        self._tails = [(rank, Tail(logs / f"rank_{rank}.log")) for rank in ranks]
        self._reads = {}
        self._reads["out"], self.out = os.pipe()
        self._reads["err"], self.err = os.pipe()
        self._forwarders: list[threading.Thread] = []

    def begin(self) -> None:
        """The ranks hold the descriptors now; ours are closed, so that their end is seen."""
        os.close(self.out)
        os.close(self.err)
        for name, descriptor in self._reads.items():
            self._forwarders.append(threading.Thread(target=self._forward, args=(name, descriptor), daemon=True))
            self._forwarders[-1].start()

    def look(self) -> None:
        """Say what the logs have got since the last look."""
        for rank, tail in self._tails:
            for line in tail.lines():
                self._say(rank=rank, line=line)

    def finish(self, is_impatient: Callable[[], bool]) -> None:
        """Say all that is left: the ranks have ended, so nobody holds the pipes any more."""
        self.look()
        for rank, tail in self._tails:
            for line in tail.rest():
                self._say(rank=rank, line=line)
        for each in self._forwarders:
            while each.is_alive() and not is_impatient():
                each.join(LOOK_EVERY_SECONDS)

    def _forward(self, name: str, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as stream:
            # Whole lines, so that those of other ranks do not come in between; but nobody waits for an endless one.
            while line := stream.readline(_LINE_BYTES):
                said: dict[str, Any] = {name: line.decode(errors="surrogateescape")}
                self._say(**said)
