from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ascendtune.core import log
from ascendtune.core import progress_bar as progress
from ascendtune.core.progress_bar import ProgressBar, slow_work_bar
from ascendtune.core.terminal_text import columns_of


@contextmanager
def _terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> Iterator[int]:
    """stderr is a terminal of so many columns, in which progress is shown at once; yields its other side."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield ours
    os.close(ours)


def _until(screen: int, end: str) -> str:
    """What appears on the terminal, up to `end` and not only the first bytes, which may be a part."""
    written = ""
    while end not in written[1:]:
        written += os.read(screen, 4096).decode()
    return written


def test_without_a_terminal_a_line_comes_after_two_seconds_and_every_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    with ProgressBar(stream) as shown:
        for second in range(25):
            now = float(second)
            shown.show("tokenising", second, 100)
    assert stream.getvalue() == "tokenising: 2 of 100\ntokenising: 12 of 100\ntokenising: 22 of 100\n"


def test_parts_stand_behind_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    with ProgressBar(stream) as shown:
        shown.show("MiB of o/m", 0, 9, "a.safetensors 1%")
        now = 3.0
        shown.show("MiB of o/m", 4, 9, "a.safetensors 44%, b.safetensors 10%")
    assert stream.getvalue() == "MiB of o/m: 4 of 9; a.safetensors 44%, b.safetensors 10%\n"


def test_work_without_progress_is_counted_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.02)
    monkeypatch.setattr(progress, "_REPEAT_SECONDS", 0.01)
    stream = io.StringIO()
    with ProgressBar(stream) as shown, shown.counting("loading the model"):
        while not stream.getvalue():
            time.sleep(0.01)
    assert re.fullmatch(r"loading the model: \d+\.\d s so far\n", stream.getvalue())


def test_work_that_reports_nothing_for_long_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_SILENT_SECONDS", 0.02), ("_REPEAT_SECONDS", 0.01), ("_LINE_SECONDS", 0.05)):
        monkeypatch.setattr(progress, name, seconds)
    stream = io.StringIO()
    with ProgressBar(stream) as shown:
        shown.show("comparing", 1, 2)
        while stream.getvalue().count("\n") < 3:
            time.sleep(0.01)
        shown.show("comparing", 2, 2)
        lines = stream.getvalue()
        time.sleep(0.2)
        # What is done is not said again.
        assert stream.getvalue().removeprefix(lines) in ("", "comparing: 2 of 2\n")
    assert set(lines.splitlines()) == {"comparing: 1 of 2"}


def test_message_begins_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal(monkeypatch, 80) as screen:
        log.set_up()
        with ProgressBar(sys.stderr) as shown:
            shown.show("MiB of o/m", 4, 9)
            log.warn("another mirror")
            written = _until(screen, "\n")
        log.warn("the end")
    assert re.fullmatch(r"\r\x1b\[KMiB of o/m .* 4/9\r\x1b\[Kwarning: another mirror\r\n.*", written, re.DOTALL)
    assert log.displays == []


@pytest.mark.parametrize(("columns", "most"), [(60, 59), (0, 79), (1, 1)])
def test_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, most: int) -> None:
    with _terminal(monkeypatch, columns) as screen:
        with ProgressBar(sys.stderr) as shown:
            shown.show("MiB of o/数据", 4, 9, "训练数据" * 20)
        line = _until(screen, "\r\x1b[K").split("\x1b[K")[1].rstrip("\r")
    assert most - 1 <= columns_of(line) <= most and line.endswith("…")


def test_time_left_follows_from_what_was_done_since_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with _terminal(monkeypatch, 80) as screen:
        with ProgressBar(sys.stderr) as shown:
            now = 1.0
            shown.show("MiB of o/m", 90, 100)
            now = 5.0
            shown.show("MiB of o/m", 92, 100)
        lines = _until(screen, "left\r\x1b[K")
    assert lines.endswith(" 90/100\r\x1b[KMiB of o/m ██████████████████████·· 92/100, 16.0 s left\r\x1b[K")


def test_child_forked_while_a_line_is_written_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            begun.set()
            goes_on.wait(60)
            return super().write(text)

    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    shown = ProgressBar(Slow())
    shown._last = 0.0
    writer = threading.Thread(target=shown.show, args=("tokenising", 1, 9), daemon=True)
    writer.start()
    assert begun.wait(60)
    threading.Timer(0.2, goes_on.set).start()
    if (pid := os.fork()) == 0:
        signal.alarm(10)
        shown.say("from the child")
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    writer.join()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_work_continues_where_progress_cannot_be_written(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    tried = []

    class Full(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

        def fileno(self) -> int:
            return screen

        def write(self, text: str) -> int:
            tried.append(text)
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    with _terminal(monkeypatch, 80) as screen, ProgressBar(Full()) as shown:
        shown._pause = 0.0
        shown.show("MiB of o/m", 1, 2)
        shown.show("MiB of o/m", 2, 2)
    assert len(tried) >= 2


@pytest.mark.parametrize(("rank", "lines"), [(None, 2), ("0", 2), ("1", 0)])
def test_log_has_a_line_of_the_main_rank_for_each_half_minute_of_slow_work(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, lines: int
) -> None:
    now, stream = 0.0, io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with slow_work_bar() as bar, bar.counting("loading the model"):
        for second in range(70):
            now = float(second)
            bar.show("loading the model")
    expected = ["loading the model: 30.0 s so far", "loading the model: 1:00 so far"]
    assert stream.getvalue().splitlines() == expected[:lines]
