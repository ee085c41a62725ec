from __future__ import annotations

import logging
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
