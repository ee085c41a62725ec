"""The display of a run: lines in a log, a live display on a terminal."""

from __future__ import annotations

import codecs
import io
import json
import os
import pty
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.train.report.callback import RunFacts
from ascendtune.train.report.progress import ProgressDisplay, show_summary, sparkline, wrapped_pieces
from ascendtune.train.report.run_progress import RunProgress


def record(step: int, loss: float = 3.2137) -> dict[str, Any]:
    return {
        "step": step,
        "loss": loss,
        "learning_rate": 9.9e-5,
        "tokens": 2508,
        "memory_peak_bytes": None,
        "seconds": {"step": 2.0},
    }


def started(total: int = 200, start_step: int = 0) -> ProgressDisplay:
    display = ProgressDisplay(RunDir(Path("runs/alpaca-qwen")))
    display.on_start(RunFacts("alpaca-qwen", total, start_step, 1))
    return display


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr("ascendtune.train.report.progress.time.monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


class Terminal:
    """Inside the context sys.stderr is a terminal of 60 columns; afterwards `text` is what was written to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "60"), ("LINES", "24")):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("NO_COLOR", raising=False)
        self.text = ""

    def __enter__(self) -> Terminal:
        self._ours, theirs = pty.openpty()
        self._stream = os.fdopen(theirs, "w", buffering=1, encoding="utf-8")
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._monkeypatch.setattr(sys, "stderr", self._stream)
        return self

    def _read(self) -> None:
        # A character may come in two parts.
        decoder = codecs.getincrementaldecoder("utf-8")()
        # Reading fails once the other side is closed and everything has come.
        with suppress(OSError):
            while chunk := os.read(self._ours, 65536):
                self.text += decoder.decode(chunk)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()
        self._stream.close()
        self._reader.join(5)
        os.close(self._ours)


def test_plain_display_prints_few_lines(clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]) -> None:
    display = started(total=12)
    for step in range(1, 13):
        clock(2)
        display.on_step(record(step))
        if step == 5:
            of_datasets = {"a.json": {"loss": 2.0}, "b.json": {"loss": None}}
            display.on_evaluation(
                {"step": 5, "loss": 2.5, "perplexity": 12.1825, "datasets": of_datasets, "seconds": 75.0}
            )
    display.on_end()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "step 1/12  loss 3.214  lr 9.9e-05  1,254 tok/s",
        "step 4/12  loss 3.214  lr 9.9e-05  1,254 tok/s  ETA 16.0 s",
        "step 5/12  evaluation loss 2.500  perplexity 12.2  a.json 2.000  b.json not a number  took 1:15",
        "step 7/12  loss 3.214  lr 9.9e-05  1,254 tok/s  ETA 10.0 s",
        "step 10/12  loss 3.214  lr 9.9e-05  1,254 tok/s  ETA 4.0 s",
        "step 12/12  loss 3.214  lr 9.9e-05  1,254 tok/s  took 24.0 s",
    ]


def test_a_long_evaluation_shows_how_far_it_is(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    display = started(total=12)
    for seconds in (0.01, 4):
        display.on_step(record(1 if seconds < 1 else 2))
        for done in range(8):
            display.on_evaluation_progress(done, 8)
            clock(seconds)
        display.on_evaluation({"step": 2, "loss": 2.5, "seconds": 8 * seconds})
    display.on_end()
    assert [line for line in capsys.readouterr().err.splitlines() if "evaluating" in line] == [
        "step 2/12  evaluating: 3 of 8 batches, 20.0 s left",
        "step 2/12  evaluating: 6 of 8 batches, 8.0 s left",
    ]


def test_a_silence_is_printed_at_its_beginning_and_when_it_has_doubled(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascendtune.train.report.progress._LOOK_SECONDS", 0.001)
    run = RunDir(tmp_path)
    run.heartbeats.mkdir()
    display = ProgressDisplay(run)
    display.on_start(RunFacts("alpaca-qwen", 9, 0, 1))
    display.on_step(record(1))
    printed = capsys.readouterr().err

    def beat(phase: str, seconds_ago: float) -> None:
        text = json.dumps({"phase": phase, "monotonic": time.monotonic() - seconds_ago})
        (run.heartbeats / "rank_0.json").write_text(text)

    def until(lines: int) -> list[str]:
        nonlocal printed
        deadline = time.perf_counter() + 60
        while (found := printed.splitlines())[lines - 1 :] == [] and time.perf_counter() < deadline:
            time.sleep(0.001)
            printed += capsys.readouterr().err
        return found

    beat("forward", 30)
    assert until(2)[1] == "step 1/9  silent for 30.0 s (usual step 2 s)"
    beat("forward", 59)
    beat("forward", 61)
    assert until(3)[2] == "step 1/9  silent for 1:01 (usual step 2 s)"
    beat("checkpoint", 600)
    display.on_end()
    assert len((printed + capsys.readouterr().err).splitlines()) == 3


def test_usual_step_is_one_step_of_records_of_many() -> None:
    progress = RunProgress("alpaca-qwen", RunFacts("alpaca-qwen", 400, 100, 2))
    for step, seconds in ((150, 100.0), (200, 100.0), (210, 20.0), (250, 80.0)):
        progress.add({**record(step), "seconds": {"step": seconds}})
    assert progress.usual_step_seconds == 2
    assert progress.note_silence(("forward", time.monotonic() - 15))


def test_learning_from_preferences_tells_how_often_it_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    display = started()
    display.on_step({**record(1), "accuracy": 0.8125, "margin": -0.02, "chosen_reward": 1.0, "kl": None})
    display.on_evaluation({"step": 1, "loss": 0.5, "seconds": 1.0, "accuracy": 1.0})
    assert capsys.readouterr().err.splitlines() == [
        "step 1/200  loss 3.214  accuracy 0.812  margin -0.02  lr 9.9e-05  1,254 tok/s",
        "step 1/200  evaluation loss 0.5000  accuracy 1  took 1.0 s",
    ]


def test_evaluations_after_every_step_print_few_lines(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """An epoch of one step is evaluated at every step; the first evaluation and the last are always printed."""
    for end, last in ((12, 12), (11, 11)):
        display = started(total=12)
        for step in range(1, end + 1):
            clock(0.2)
            display.on_step(record(step))
            display.on_evaluation({"step": step, "loss": 2.5, "seconds": 0.1})
        display.on_end()
        lines = [line for line in capsys.readouterr().err.splitlines() if "evaluation" in line]
        assert [line.split()[1] for line in lines] == ["1/12", "6/12", "11/12", *(["12/12"] if last == 12 else [])]
    display = started(total=12)
    for step in (1, 2):
        clock(0.2)
        display.on_step(record(step))
        display.on_evaluation({"step": step, "loss": 2.5, "seconds": 0.1})
    display.on_end()
    assert "step 2/12  evaluation loss" in capsys.readouterr().err.splitlines()[-1]


def test_an_evaluation_that_is_printed_late_is_of_its_own_step(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    display = started(total=12)
    for step in range(1, 5):
        clock(0.2)
        display.on_step(record(step))
        if step < 3:
            display.on_evaluation({"step": step, "loss": 2.5, "seconds": 0.1})
    display.on_end()
    lines = [line.split("  ")[:2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        ["step 1/12", "loss 3.214"],
        ["step 1/12", "evaluation loss 2.500"],
        ["step 2/12", "evaluation loss 2.500"],
        ["step 4/12", "loss 3.214"],
    ]


def test_evaluations_between_two_lines_of_steps_are_printed(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    display = started(total=12)
    for step in range(1, 13):
        clock(1)
        display.on_step(record(step))
        if step % 4 == 0:
            display.on_evaluation({"step": step, "loss": 2.5, "seconds": 0.1})
    display.on_end()
    lines = [line.split()[1] for line in capsys.readouterr().err.splitlines() if "evaluation" in line]
    assert lines == ["4/12", "8/12", "12/12"]


def test_a_run_that_ends_early_shows_its_last_step(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    display = started(start_step=50)
    for step in (51, 52):
        clock(1)
        display.on_step(record(step))
    display.on_end()
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["51/200", "52/200"]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_plain_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    terminal = Terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    with terminal:
        display = started()
        display.on_step(record(1))
        display.on_end()
        show_summary([("loss", "3 -> 1")])
    assert terminal.text == "step 1/200  loss 3.214  lr 9.9e-05  1,254 tok/s\r\nloss  3 -> 1\r\n"


def test_a_live_display_fits_and_lets_messages_through(monkeypatch: pytest.MonkeyPatch) -> None:
    with Terminal(monkeypatch) as terminal:
        stderr, stdout, threads = sys.stderr, sys.stdout, threading.enumerate()
        monkeypatch.setattr("ascendtune.train.report.progress._LiveScreen.redraw_seconds", 0)
        display = started()
        assert sys.stdout is stdout
        # One that looks for silences, and none that refreshes.
        assert [each.name for each in threading.enumerate() if each not in threads] == ["silence"]
        for step in range(1, 151):
            display.on_step({**record(step), "memory_peak_bytes": 61 * 2**30})
        display.on_evaluation({"step": 150, "loss": 2.5, "seconds": 75.0})
        print("a message", file=sys.stderr)
        display.on_end()
        assert sys.stderr is stderr
    # A killed process leaves the cursor as it is: it must not be hidden while training runs.
    assert terminal.text.find("\x1b[?25h") < terminal.text.find("step 1/")
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.text))
    assert "a message" in lines
    assert max(map(len, lines)) <= 60
    last = "\n".join(lines[-4:])
    for expected in ("alpaca-qwen", "step 150/200 75%", "loss 3.214", "61.0 GiB", "eval 2.500 at step 150"):
        assert expected in last


def test_live_display_redraws_at_most_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with Terminal(monkeypatch) as terminal:
        began = time.monotonic()
        display = started(total=5000)
        for step in range(1, 5001):
            display.on_step(record(step))
        display.on_end()
        seconds = time.monotonic() - began
    assert 3 <= len(re.findall(r"step \d+/", terminal.text)) <= 4 * seconds + 5


def test_a_terminal_that_goes_away_does_not_stop_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    display = started()
    display.on_step(record(1))
    display.on_step(record(200))
    display.on_end()
    show_summary([("loss", "3 -> 1")])


def test_a_sparkline_has_a_gap_where_there_is_no_number() -> None:
    assert sparkline([8.0, float("nan"), 1.0, float("inf"), 4.5]) == "█ ▁ ▅"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize("width", [20, 33, 60, 61, 62, 63, 64, 65, 66])
def test_lines_are_full_and_never_wider_than_the_terminal(width: int) -> None:
    pieces = ["step 12/200", "loss 3.214", "lr 9.9e-05", "1.25k tokens/s", "2.0 s a step", "ETA 6:16"]
    lines = wrapped_pieces(pieces, width)
    assert max(map(len, lines)) <= width
    assert "   ".join(lines) == "   ".join(pieces)
    for line, following in pairwise(lines):
        assert len(f"{line}   {following.split('   ')[0]}") > width
