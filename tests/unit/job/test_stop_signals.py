"""Signals that are noted."""

from __future__ import annotations

import signal

import pytest

from ascendtune.core import log
from ascendtune.job.stop_signals import StopSignals


@pytest.mark.parametrize("can_pause", [True, False])
def test_ctrl_z_pauses_what_can_be_paused_and_is_answered_otherwise(
    can_pause: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    log.set_up()
    with StopSignals(keeps_checkpoints=True, can_pause=can_pause) as asked:
        signal.raise_signal(signal.SIGTSTP)
        assert asked.pause is can_pause and asked.first is None
    assert ("Ctrl-Z is ignored" in capsys.readouterr().err) is not can_pause
    assert signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL


@pytest.mark.parametrize("is_ignored", [True, False])
def test_a_closed_terminal_stops_a_job_unless_it_was_started_under_nohup(is_ignored: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        with StopSignals(keeps_checkpoints=True, can_pause=True) as asked:
            signal.raise_signal(signal.SIGHUP)
            assert (asked.first is None) is is_ignored
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_is_answered_once(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up()
    with StopSignals(keeps_checkpoints=True, can_pause=True) as asked:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
    assert asked.again and capsys.readouterr().err.count("stopping at once") == 1
