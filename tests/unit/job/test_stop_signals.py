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
