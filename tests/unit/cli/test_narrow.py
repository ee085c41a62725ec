"""Messages on a narrow terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

RECIPE = """model: {path: nowhere, architecture: x, weights: y}
data: {train: rows.jsonl}
precision: fp8
"""


def _said(directory: Path, *, columns: int | None) -> list[str]:
    """The lines on stderr, which is a terminal of so many columns, or none."""
    ours, theirs = pty.openpty()
    stderr = subprocess.PIPE if columns is None else theirs
    argv = [sys.executable, "-m", "ascendtune", "recipe", "check", "r.yaml"]
    env = {**os.environ, "COLUMNS": str(columns or 40), "NO_COLOR": "1"}
    ended = subprocess.run(argv, cwd=directory, env=env, stdin=subprocess.DEVNULL, stderr=stderr, check=False)
    os.close(theirs)
    said = ended.stderr if columns is None else os.read(ours, 1 << 16)
    os.close(ours)
    assert ended.returncode == 2
    return said.decode().splitlines()


def test_errors_are_wrapped_on_a_terminal_and_whole_in_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    narrow, piped = _said(tmp_path, columns=40), _said(tmp_path, columns=None)
    assert max(map(len, narrow)) <= 40 and max(map(len, piped)) > 60
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(piped).split())
    assert "error: unknown keys 'model.architecture', 'model.weights'" in piped
    assert sum(line.startswith("   do: valid keys: path, ") for line in piped) == 1
