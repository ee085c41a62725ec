"""The command line as a process: its two streams, its exit code."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.cli.main import main
from time_limit import time_limit

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


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`ascendtune` within this process, which has imported what it needs: for commands that start no other program."""

    def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        logger, umask, variables = logging.getLogger("ascendtune"), os.umask(0), dict(os.environ)
        os.umask(umask)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        with monkeypatch.context() as changed, Path(os.devnull).open() as nothing:
            changed.chdir(tmp_path)
            for name, value in {"COLUMNS": "80", **env}.items():
                changed.setenv(name, value)
            # The command line replaces the streams and sets up the logger.
            for name, stream in (("stdin", nothing), ("stdout", sys.stdout), ("stderr", sys.stderr)):
                changed.setattr(sys, name, stream)
            for name in ("handlers", "level", "propagate"):
                changed.setattr(logger, name, getattr(logger, name))
            logger.handlers = list(logger.handlers)
            try:
                with time_limit(60, " ".join(map(str, words))), pytest.raises(SystemExit) as ended:
                    main([*map(str, words)])
            finally:
                os.umask(umask)
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                for name in os.environ.keys() - variables.keys() - {"COLUMNS", *env}:
                    del os.environ[name]
        return subprocess.CompletedProcess(words, int(ended.value.code or 0), *capfd.readouterr())

    return run
