from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from ascendtune.core import log


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    logger = logging.getLogger("ascendtune")
    handlers, propagate, level = list(logger.handlers), logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("variables", "label"),
    [
        ({"WORLD_SIZE": "2", "RANK": "1"}, "[rank 1] "),
        ({"WORLD_SIZE": "1", "RANK": "0"}, ""),
        ({}, ""),
        # As a scheduler sets them that starts whole nodes.
        ({"WORLD_SIZE": "2"}, ""),
        ({"RANK": "0"}, ""),
    ],
)
def test_a_message_says_the_rank_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variables: dict[str, str], label: str
) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    log.set_up()
    log.warn("what to look at")
    assert capsys.readouterr().err == f"{label}warning: what to look at\n"


class Interrupted(io.RawIOBase):
    """Standard error, on which a signal comes in the middle of the first write."""

    has_come = False

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        if not self.has_come:
            self.has_come = True
            signal.raise_signal(signal.SIGUSR1)
        return os.write(2, bytes(data))  # type: ignore[call-overload, no-any-return]


def test_a_signal_in_the_middle_of_a_message_is_answered(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(Interrupted()), line_buffering=True))
    log.set_up()
    before = signal.signal(signal.SIGUSR1, lambda *_: log.say_in_handler("heard"))
    try:
        log.say("step 1")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(capfd.readouterr().err.splitlines()) == ["heard", "step 1"]
