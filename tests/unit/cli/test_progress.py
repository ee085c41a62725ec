from __future__ import annotations

import io
import re
import time

import pytest

from ascendtune.cli import progress
from ascendtune.cli.progress import Progress


def test_without_a_terminal_a_line_comes_after_two_seconds_and_every_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    with Progress(stream) as shown:
        for second in range(25):
            now = float(second)
            shown.show("tokenising", second, 100)
    assert stream.getvalue() == "tokenising: 2 of 100\ntokenising: 12 of 100\ntokenising: 22 of 100\n"


def test_parts_stand_behind_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    with Progress(stream) as shown:
        shown.show("MiB of o/m", 0, 9, "a.safetensors 1%")
        now = 3.0
        shown.show("MiB of o/m", 4, 9, "a.safetensors 44%, b.safetensors 10%")
    assert stream.getvalue() == "MiB of o/m: 4 of 9; a.safetensors 44%, b.safetensors 10%\n"


def test_work_without_progress_is_counted_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.02)
    monkeypatch.setattr(progress, "_REPEAT_SECONDS", 0.01)
    stream = io.StringIO()
    with Progress(stream) as shown, shown.counting("loading the model"):
        time.sleep(0.5)
    assert re.fullmatch(r"loading the model: 0\.\d s so far\n", stream.getvalue())


def test_work_that_reports_nothing_for_long_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_SILENT_SECONDS", 0.02), ("_REPEAT_SECONDS", 0.01), ("_LINE_SECONDS", 0.05)):
        monkeypatch.setattr(progress, name, seconds)
    stream = io.StringIO()
    with Progress(stream) as shown:
        shown.show("comparing", 1, 2)
        while stream.getvalue().count("\n") < 3:
            time.sleep(0.01)
        shown.show("comparing", 2, 2)
        lines = stream.getvalue()
        time.sleep(0.2)
        # What is done is not said again.
        assert stream.getvalue().removeprefix(lines) in ("", "comparing: 2 of 2\n")
    assert set(lines.splitlines()) == {"comparing: 1 of 2"}
