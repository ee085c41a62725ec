from __future__ import annotations

import io
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
    monkeypatch.setattr(progress, "_COUNT_SECONDS", 0.01)
    stream = io.StringIO()
    with Progress(stream) as shown, shown.counting("loading the model"):
        time.sleep(0.5)
    assert stream.getvalue() == "loading the model, seconds: 0\n"
