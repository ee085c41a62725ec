"""Progress after two seconds: a bar on one line of a terminal; elsewhere a line then, and another every ten seconds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from ascendtune.core.log import is_quiet
from ascendtune.core.terminal_text import control
from ascendtune.core.units import format_duration

_SILENT_SECONDS = 2.0
_REFRESH_SECONDS = 0.1
_COUNT_SECONDS = 0.5
_LINE_SECONDS = 10.0
"""Between two lines where there is no terminal."""
_BAR = 24


class Progress:
    """A context manager; the line is erased at the end. Shows nothing after --quiet."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._watched = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False
        self._what = ""
        self._began = self._last = time.monotonic()
        self._pause = _SILENT_SECONDS

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._wipe()

    def show(self, what: str, done: int, total: int, parts: str = "") -> None:
        """Update the line: `done` of `total` items of `what`; `total` is 0 if unknown. `parts` stands at its end."""
        if is_quiet():
            return
        now = time.monotonic()
        if what != self._what:
            self._what, self._began = what, now
        waited = now - self._began
        if waited < _SILENT_SECONDS or now - self._last < (_REFRESH_SECONDS if self._watched else self._pause):
            return
        self._last, self._pause = now, _LINE_SECONDS
        if not self._watched:
            whole = f"{what}: {done:,}" + (f" of {total:,}" if total > 0 else "")
            print(f"{whole}; {parts}" if parts else whole, file=self._stream, flush=True)
            return
        self._shown = True
        self._stream.write("\r" + control("[K", self._stream) + self._line(done, total, waited, parts))
        self._stream.flush()

    @contextmanager
    def counting(self, what: str) -> Iterator[None]:
        """Show the seconds of work that reports no progress, such as loading a model."""
        over, began = threading.Event(), time.monotonic()

        def count() -> None:
            while not over.wait(_COUNT_SECONDS):
                self.show(f"{what}, seconds", int(time.monotonic() - began), 0)

        self.show(f"{what}, seconds", 0, 0)
        counter = threading.Thread(target=count, daemon=True)
        counter.start()
        try:
            yield
        finally:
            over.set()
            counter.join()
            self._wipe()

    def say(self, message: str) -> None:
        """Print a line that stays, above the progress bar."""
        self._wipe()
        print(message, file=self._stream, flush=True)

    def _line(self, done: int, total: int, waited: float, parts: str) -> str:
        if total <= 0:
            line = f"{self._what} {done:,}"
        else:
            filled = round(_BAR * done / total)
            left = waited / done * (total - done) if done else None
            line = (
                f"{self._what} {'█' * filled}{'·' * (_BAR - filled)} {done:,}/{total:,}, {format_duration(left)} left"
            )
        line += f"; {parts}" if parts else ""
        return line[: os.get_terminal_size(self._stream.fileno()).columns - 1]

    def _wipe(self) -> None:
        if self._shown:
            self._stream.write("\r" + control("[K", self._stream))
            self._stream.flush()
            self._shown = False
