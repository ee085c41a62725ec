"""Commands at the end of a table; output that can go nowhere."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ascendtune.cli import job_display as module
from ascendtune.core import log
from ascendtune.job.follow import LogLine

COMMAND = "/a/long/way/to/an/environment/bin/python3 -m ascendtune.train.worker runs/a"


def _last_line() -> str:
    return module.process_table(["pid"], [["1"]], [COMMAND], right=["pid"]).splitlines()[-1]


@pytest.mark.parametrize(
    ("columns", "said"), [(None, f"  1  {COMMAND}"), (44, "  1  python3 -m ascendtune.train.worker run…")]
)
def test_a_terminal_has_room_for_what_a_command_does(
    columns: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "width", lambda stream: columns)
    assert _last_line() == said


def test_job_with_brackets_in_its_command_can_be_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascendtune.job import record, registry

    job = SimpleNamespace(id="a-1", argv=["train", "r.yaml", "data.train=[/x]"])
    monkeypatch.setattr(registry, "jobs", lambda: [job])
    monkeypatch.setattr(record, "state_of", lambda job: "running")
    ((name, about),) = module.complete("a")
    assert name == "a-1" and about == "running, train r.yaml data.train=[/x]"


@pytest.mark.parametrize(("number", "is_told"), [(errno.ENOSPC, True), (errno.EPIPE, False)])
def test_a_job_whose_output_can_go_nowhere_is_shown_no_further(
    number: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    shown: list[str] = []

    class Full(io.TextIOWrapper):
        def write(self, text: str) -> int:
            shown.append(text)
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(log, "warn", told.append)
    with (tmp_path / "out").open("wb") as file, Full(file) as full:
        monkeypatch.setattr(sys, "stdout", full)
        module.show_while_read((LogLine(0, "hello"), LogLine(0, "again")), tmp_path / "log")
        monkeypatch.undo()

    assert len(shown) == 1
    assert bool(told) == is_told and all(str(tmp_path / "log") in each for each in told)
