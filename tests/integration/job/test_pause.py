"""Ctrl-Z, `fg` and Ctrl-C in a shell with a terminal."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cluster import until

_TICK = "import time; [print('tick', n) or time.sleep(.05) for n in range(120)]"


class Shell:
    """bash on a terminal; `text` is what stands there."""

    def __init__(self) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.text = ""
        threading.Thread(target=self._read, daemon=True).start()

    def type(self, words: str) -> None:
        os.write(self._terminal, words.encode())

    def close(self) -> None:
        # bash passes it on to its jobs.
        os.kill(self._pid, signal.SIGHUP)
        os.waitpid(self._pid, 0)
        os.close(self._terminal)

    def _read(self) -> None:
        # Reading fails once the terminal is closed.
        with suppress(OSError):
            while chunk := os.read(self._terminal, 4096):
                self.text += chunk.decode(errors="replace")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    started = Shell()
    yield started
    started.close()


def test_a_job_of_two_ranks_is_paused_whole_and_continues_to_its_end(shell: Shell, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "ascendtune", "launch", "--devices", "2", "--", sys.executable, "-c", _TICK]
    shell.type(f"{shlex.join(words)}\n")
    for said in ("tick 3", "tick 30"):
        until(lambda said=said: shell.text.count(f"{said}\r\n") == 2)
        shell.type("\x1a")
        until(lambda: "Stopped" in shell.text)
        logs = sorted((tmp_path / "state").glob("ascendtune/jobs/*/log/rank_*.log"))
        before = [log.stat().st_size for log in logs]
        time.sleep(0.5)
        assert [log.stat().st_size for log in logs] == before and len(before) == 2
        shell.text = shell.text.replace("Stopped", "paused by the shell")
        shell.type("fg\n")
    until(lambda: shell.text.count("tick 119\r\n") == 2)
    shell.type("echo code=$((40 + $?))\n")
    until(lambda: "code=40" in shell.text)
    assert shell.text.count("paused, with all workers") == 2 and "error" not in shell.text
