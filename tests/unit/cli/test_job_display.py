"""Commands at the end of a table."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ascendtune.cli import job_display as module

COMMAND = "/a/long/way/to/an/environment/bin/python3 -m ascendtune.train.worker runs/a"


def _last_line() -> str:
    return module.process_table(["pid"], [["1"]], [COMMAND], right=["pid"]).splitlines()[-1]


@pytest.mark.parametrize(
    ("columns", "said"), [(None, f"  1  {COMMAND}"), (44, "  1  python3 -m ascendtune.train.worker runs")]
)
def test_a_terminal_has_room_for_what_a_command_does(
    columns: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "width", lambda stream: columns)
    assert _last_line() == said


def test_job_with_brackets_in_its_command_can_be_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer._completion_classes import _sanitize_help_text

    from ascendtune.job import record, registry

    job = SimpleNamespace(id="a-1", argv=["train", "r.yaml", "data.train=[/x]"])
    monkeypatch.setattr(registry, "jobs", lambda: [job])
    monkeypatch.setattr(record, "state_of", lambda job: "running")
    ((name, about),) = module.complete("a")
    assert name == "a-1" and _sanitize_help_text(about).rstrip() == "running, train r.yaml data.train=[/x]"
