"""The command line as a user meets it: a process, its two streams, its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ascendtune(tmp_path: Path) -> Run:
    """`ascendtune("runs", "list", COLUMNS="60")`, run in an empty directory with no terminal."""

    def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ascendtune", *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "80", **env},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
        )

    return run
