"""Actions of a launcher's guard after the launcher has ended."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ascendtune.job import guard


def test_temporary_files_of_a_killed_launcher_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "log/.torchrun_0"
    (scratch / "none_x/attempt_0/0").mkdir(parents=True)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))

    guard.main("no process carries this", str(scratch))
    guard.main("no process carries this", str(scratch))

    assert list((tmp_path / "log").iterdir()) == []
