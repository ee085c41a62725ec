"""--quiet and --verbose: what is printed, and that workers inherit it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascendtune.cli import messages
from ascendtune.cli.data_show import _around_the_labels
from ascendtune.core import log
from ascendtune.core.progress_bar import ProgressBar
from ascendtune.core.rundir import RunDir
from ascendtune.train.report.callback import RunFacts
from ascendtune.train.report.progress import ProgressDisplay, show_summary


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ASCENDTUNE_VERBOSITY", "")
    yield
    os.environ.pop("ASCENDTUNE_VERBOSITY", None)
    log.set_up()


def test_quiet_leaves_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up(quiet=True)
    log.say("a notice")
    log.warn("a warning")
    messages.notice("another notice")
    messages.notice_ignored(["one", "two"], Path("recipe.yaml"))
    messages.warn("a warning of the command")
    show_summary([("loss", "3 -> 1"), ("model", "runs/run/model (adapter)")])
    display = ProgressDisplay(RunDir(Path("runs/run")))
    display.on_start(RunFacts("run", 9, 0, 1))
    display.on_end()
    out, err = capsys.readouterr()
    assert err.splitlines() == ["warning: a warning", "warning: a warning of the command"]
    assert out == "model: runs/run/model (adapter)\n"


def test_quiet_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascendtune.core.progress_bar._SILENT_SECONDS", 0)
    for quiet, printed in ((True, False), (False, True)):
        stream = io.StringIO()
        log.set_up(quiet=quiet)
        with ProgressBar(stream) as progress:
            progress.show("rows", 1, 2)
            progress.show("rows", 2, 2)
        assert bool(stream.getvalue()) is printed


def test_a_worker_inherits_the_choice_and_the_next_command_does_not() -> None:
    log.set_up(quiet=True)
    log.set_up()  # as a worker does
    assert log.is_quiet()
    log.set_up(quiet=False, verbose=True)
    assert log.is_verbose() and not log.is_quiet()
    log.set_up(quiet=False)
    assert not log.is_verbose() and not log.is_quiet()


def test_verbose_lists_every_key_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up(quiet=False)
    messages.notice_ignored(["one: no effect", "two: no effect"], Path("recipe.yaml"))
    assert "2 notes" in capsys.readouterr().err
    log.set_up(quiet=False, verbose=True)
    messages.notice_ignored(["one: no effect", "two: no effect"], Path("recipe.yaml"))
    assert [line.partition("notice: ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "one: no effect",
        "two: no effect",
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_next_command_is_suggested_on_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log.set_up(quiet=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    messages.suggest_next("ascendtune chat merged")
    assert capsys.readouterr().err == ("next: ascendtune chat merged\n" if is_terminal else "")


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("user «yes»", 20, "user «yes»"),
        ("abcdefghij«yes»klmnop", 9, "…hij«yes»…"),
        ("abcdefghij", 4, "abcd…"),
    ],
)
def test_a_long_row_is_cut_around_its_labels(text: str, most: int, shown: str) -> None:
    assert _around_the_labels(text, most) == shown
