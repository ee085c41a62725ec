"""Forwards the output of a node's ranks to the starting host: rank 0's streams, and the others' logs by line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ascendtune.core.tail import Tail
from ascendtune.job.launcher import LOOK_EVERY_SECONDS
from ascendtune.job.nodes.log_queue import LogQueue

_LINE_BYTES = 64 * 1024

Stream = Literal["out", "err", "line"]


class LogSource(NamedTuple):
    """Rank 0's stdout or stderr, or a line of a rank's log."""

    rank: int
    stream: Stream


def message_of(source: LogSource, what: str | int) -> dict[str, Any]:
    """The agent's message; `what` is text, or the number of dropped lines."""
    if isinstance(what, int):
        return {"rank": source.rank, "left_out": what}
    return {"rank": source.rank, source.stream: what}


@dataclass
class _Log:
    """The log of a rank."""

    rank: int
    tail: Tail


class LogStreams:
    """Created before the ranks start, so that no output is missed.

    Rank 0 never waits for the reader: lines that exceed the queue are dropped. Logs are read only as fast as they are
    sent.

    Args:
        outbox: the queue to send through.
        ranks: the ranks that write to files in `logs`.

    Attributes:
        out, err: descriptors with which the ranks are started.
    """

    def __init__(self, outbox: LogQueue[LogSource], logs: Path, ranks: Sequence[int]) -> None:
        self._outbox = outbox
        self._logs = [_Log(rank, Tail(logs / f"rank_{rank}.log")) for rank in ranks]
        self._reads: dict[Stream, int] = {}
        self._reads["out"], self.out = os.pipe()
        self._reads["err"], self.err = os.pipe()
        self._forwarders: list[threading.Thread] = []

    def begin(self) -> None:
        """Close our copies of the descriptors, which the ranks have now, so that their end is detected."""
        os.close(self.out)
        os.close(self.err)
        for stream, descriptor in self._reads.items():
            self._forwarders.append(threading.Thread(target=self._forward, args=(stream, descriptor), daemon=True))
            self._forwarders[-1].start()

    def look(self) -> bool:
        """Send the lines that the logs got since the last call, as far as the queue has room; whether none is left."""
        is_done = True
        for log in self._logs:
            lines = log.tail.lines()
            while has_room := self._outbox.has_room():
                if (line := next(lines, None)) is None:
                    break
                self._outbox.put(LogSource(log.rank, "line"), line)
            is_done &= has_room
        return is_done

    def finish(self, is_impatient: Callable[[], bool]) -> None:
        """Send the rest: the ranks have ended, so the pipes are closed."""
        while not self.look() and not is_impatient():
            time.sleep(LOOK_EVERY_SECONDS)
        for log in self._logs:
            for line in log.tail.rest():
                self._outbox.put(LogSource(log.rank, "line"), line)
        for each in self._forwarders:
            while each.is_alive() and not is_impatient():
                each.join(LOOK_EVERY_SECONDS)

    def _forward(self, stream: Stream, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as pipe:
            # Whole lines, so that lines of other ranks are not inserted; a very long line is sent in pieces.
            while line := pipe.readline(_LINE_BYTES):
                self._outbox.put(LogSource(0, stream), line.decode(errors="surrogateescape"))
