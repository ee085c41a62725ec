"""Progress after two seconds: a bar on one line of a terminal; elsewhere a line, and another one every ten seconds.

Work that reports no progress for longer, such as importing torch, is shown with its elapsed seconds.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from ascendtune.core.log import displays, is_quiet
from ascendtune.core.terminal_text import USUAL_COLUMNS, control
from ascendtune.core.text_table import cut_lines
from ascendtune.core.units import format_duration

_SILENT_SECONDS = 2.0
_REFRESH_SECONDS = 0.1
_REPEAT_SECONDS = 0.5
_LINE_SECONDS = 10.0
"""Between two lines if the output is not a terminal."""
_SLOW_SECONDS = 30.0
_BAR = 24
_writing = threading.RLock()
"""Locked while a display writes, and during a fork: a child would wait for ever for a lock of another thread."""
os.register_at_fork(before=_writing.acquire, after_in_parent=_writing.release, after_in_child=_writing.release)


def slow_work_bar() -> ProgressBar:
    """On stderr, for work that usually takes seconds, such as importing torch: a log has a line each half minute of it.

    Of several ranks rank 0 alone writes them: hosts send the logs of all ranks to one terminal.
    """
    is_main = os.environ.get("RANK", "0") == "0"
    return ProgressBar(sys.stderr, seconds_in_logs=_SLOW_SECONDS if is_main else math.inf)


class ProgressBar:
    """A context manager; the line is erased at the end. Shows nothing after --quiet.

    Args:
        seconds_in_logs: if `stream` is not a terminal, work is shown after so many seconds, and then as often; by
            default after two seconds, and every ten.
    """

    def __init__(self, stream: TextIO, *, seconds_in_logs: float | None = None) -> None:
        self._stream = stream
        self._watched = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._is_off = is_quiet()
        self._shown = False
        self._state = ("", 0, 0, "")
        self._first = 0
        self._began = self._last = time.monotonic()
        self._pause = seconds_in_logs or _SILENT_SECONDS
        self._between = seconds_in_logs or _LINE_SECONDS
        self._over = threading.Event()
        self._repeater = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> ProgressBar:
        if not self._is_off:
            self._repeater.start()
            displays.append(self.hidden)
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._repeater.is_alive():
            self._repeater.join()
        if self.hidden in displays:
            displays.remove(self.hidden)
        self._erase()

    def show(self, what: str, done: int = 0, total: int = 0, parts: str = "") -> None:
        """Update the line: `done` of `total` items of `what`; `total` is 0 if unknown. `parts` is appended.

        Without both, the line shows the seconds since `what` began.
        """
        if self._is_off:
            return
        with _writing:
            now = time.monotonic()
            if what != self._state[0]:
                self._began, self._first = now, done
            self._state = (what, done, total, parts)
            waited = now - self._began
            if waited < _SILENT_SECONDS or now - self._last < (_REFRESH_SECONDS if self._watched else self._pause):
                return
            self._last, self._pause = now, self._between
            # The work continues when the terminal or the reader has gone, or the disk is full.
            with suppress(OSError):
                if self._watched:
                    self._shown = True
                    self._stream.write("\r" + control("[K", self._stream) + self._line(waited))
                    self._stream.flush()
                else:
                    self._stream.write(self._plain_line(waited) + "\n")
                    self._stream.flush()

    @contextmanager
    def counting(self, what: str) -> Iterator[None]:
        """Show the seconds of work that reports no progress, such as loading a model."""
        self.show(what)
        try:
            yield
        finally:
            with _writing:
                self._state = ("", 0, 0, "")
                self._erase()

    def _repeat(self) -> None:
        while not self._over.wait(_REPEAT_SECONDS):
            with _writing:
                what, done, total, _ = self._state
                if what and not 0 < total <= done:
                    self.show(*self._state)

    def say(self, message: str) -> None:
        """Print a line permanently, above the progress bar."""
        with self.hidden():
            self._stream.write(message + "\n")
            self._stream.flush()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Context in which the line is erased and not redrawn, so that other output can be written."""
        with _writing:
            self._erase()
            yield

    def _plain_line(self, waited: float) -> str:
        what, done, total, parts = self._state
        if total > 0:
            line = f"{what}: {done:,} of {total:,}"
        else:
            line = f"{what}: {done:,}" if done else f"{what}: {format_duration(waited)} so far"
        return f"{line}; {parts}" if parts else line

    def _line(self, waited: float) -> str:
        what, done, total, parts = self._state
        if total <= 0:
            line = f"{what} {done:,}" if done else f"{what} {format_duration(waited)}"
        else:
            filled = round(_BAR * done / total)
            # Earlier progress, such as bytes of a previous fetch, does not count for the speed.
            now = done - self._first
            left = f", {format_duration(waited / now * (total - done))} left" if now > 0 else ""
            line = f"{what} {'█' * filled}{'·' * (_BAR - filled)} {done:,}/{total:,}{left}"
        line += f"; {parts}" if parts else ""
        # COLUMNS, if set, does not follow the window's size: a line that is too long could not be erased.
        columns = os.get_terminal_size(self._stream.fileno()).columns or USUAL_COLUMNS
        return cut_lines([line], max(columns - 1, 1))[0]

    def _erase(self) -> None:
        if self._shown:
            self._shown = False
            with suppress(OSError):
                self._stream.write("\r" + control("[K", self._stream))
                self._stream.flush()
