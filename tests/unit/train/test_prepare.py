from __future__ import annotations

import sys

import pytest

from ascendtune.train import prepare


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("/opt/bin/ascendtune", ["ascendtune"]),
        ("/opt/lib/ascendtune/__main__.py", ["python", "-m", "ascendtune"]),
        ("mine.py", ["mine.py"]),
    ],
)
def test_the_noted_command_can_be_given_again(
    monkeypatch: pytest.MonkeyPatch, program: str, command: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "train", "r.yaml"])
    assert prepare._argv() == [*command, "train", "r.yaml"]
