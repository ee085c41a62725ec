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


def test_the_command_that_is_noted_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/ascendtune", "train", "r.yaml", "name=a", "https://me:sesame@b/c"])
    assert prepare._argv() == ["ascendtune", "train", "r.yaml", "name=a", "https://***@b/c"]
