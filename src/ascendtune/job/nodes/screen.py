"""Terminal output of a job of several hosts. The job continues while the terminal is paused or its reader has gone."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from ascendtune.core.terminal_text import SafeStream, plain
from ascendtune.core.units import count_of
from ascendtune.job.nodes.log_queue import LogQueue

_LAST_WORDS_SECONDS = 5.0
"""Longest time that a job that was asked to stop waits for its last output to be read."""
_REMEMBERED_LINES = 1000


class _HostLogSource(NamedTuple):
    host: str
    rank: int | None
    """None for the host itself."""
    is_stdout: bool = False
    """Whether its output is written to stdout unchanged."""

    def __str__(self) -> str:
        return self.host if self.rank is None else f"{self.host} rank {self.rank}"


class Screen:
    """Shows the output of hosts, prefixed with their names.

    Args:
        logs: the directory of the ranks' logs.
        is_foreign: whether the program is not ours: then rank 0 has a log, too, and repeated lines are shown.
    """

    def __init__(self, logs: Path, *, is_foreign: bool) -> None:
        self._logs = logs
        self._is_foreign = is_foreign
        self._first_printed_by: dict[int, int] = {}
        """Hash of a line -> rank: a line may have megabytes."""
        self._out, self._err = sys.stdout.fileno(), sys.stderr.fileno()
        self._log_queue = LogQueue[_HostLogSource](self._write)

    def show(self, host: str, message: dict[str, Any]) -> None:
        """Show the output in a message. Returns at once."""
        if "out" in message:
            self._log_queue.put(_HostLogSource(host, 0, is_stdout=True), message["out"])
        elif "err" in message:
            self._log_queue.put(_HostLogSource(host, 0), message["err"])
        elif "left_out" in message:
            self._log_queue.put(_HostLogSource(host, 0), message["left_out"])
        elif "complaint" in message:
            source = _HostLogSource(host, None)
            self._log_queue.put(source, f"[{source}] {message['complaint']}\n")
        elif "line" in message and self._is_news(message["rank"], message["line"]):
            source = _HostLogSource(host, message["rank"])
            self._log_queue.put(source, f"[{source}] {message['line']}\n")

    def say(self, text: str) -> None:
        """Show a message of this machine; it is never dropped."""
        self._log_queue.put(None, text)

    def finish(self, *, was_asked_to_stop: bool) -> None:
        """Wait until everything is shown; at most five seconds if the job was asked to stop."""
        began = time.monotonic()
        self._log_queue.finish(lambda: was_asked_to_stop and time.monotonic() - began > _LAST_WORDS_SECONDS)

    def _is_news(self, rank: int, line: str) -> bool:
        """Whether to show a line: one that all our workers print only once; repetitions by one rank and foreign lines
        always."""
        if self._is_foreign:
            return True
        first = self._first_printed_by.setdefault(hash(line), rank)
        if len(self._first_printed_by) > _REMEMBERED_LINES:
            del self._first_printed_by[next(iter(self._first_printed_by))]
        return first == rank

    def _write(self, source: _HostLogSource | None, what: str | int) -> None:
        text = what if isinstance(what, str) else self._left_out(source, what)
        is_stdout = source is not None and source.is_stdout and isinstance(what, str)
        # Our own messages were made safe by their stream.
        data = (text if source is None else plain(text)).encode(errors="surrogateescape")
        # Without Python's buffers, whose locks may not be available at the end of a program that is interrupted within
        # a write. A terminal that closes sends SIGHUP, which requests a last checkpoint; output until then has no
        # reader.
        with suppress(OSError):
            while data:
                data = data[os.write(self._out if is_stdout else self._err, data) :]

    def _left_out(self, source: _HostLogSource | None, lines: int) -> str:
        assert source is not None
        has_log = source.rank is not None and (self._is_foreign or source.rank > 0)
        where = f"; {self._logs / f'rank_{source.rank}.log'} has them" if has_log else ""
        return f"[{source}] {count_of(lines, 'line')} dropped: the terminal did not take them in time{where}\n"


class _Stderr(io.TextIOBase):
    """Merges our own messages, in order, with the output of the hosts."""

    def __init__(self, screen: Screen, descriptor: int) -> None:
        self._screen = screen
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        self._screen.say(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


@contextmanager
def screen(logs: Path, *, is_foreign: bool) -> Iterator[Screen]:
    """A screen that also shows our own messages. Call `finish` before leaving it without an error."""
    sys.stdout.flush()
    sys.stderr.flush()
    shown = Screen(logs, is_foreign=is_foreign)
    with redirect_stderr(cast(TextIO, SafeStream(cast(TextIO, _Stderr(shown, sys.stderr.fileno()))))):
        try:
            yield shown
        except BaseException:
            # Earlier output is shown before the error.
            shown.finish(was_asked_to_stop=True)
            raise
