from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

# As the launcher does: a child is started, then this process becomes another program.
_BECOME = """
import os, sys
from ascendtune.core import process
process.start_beside((sys.executable, "-m", "ascendtune.job.hang.beside", str(os.getpid()), sys.argv[1]), os.environ)
process.replace(["/bin/sleep", "60"], os.environ)
"""


def _ignores(pid: int, number: int) -> bool:
    ignored = Path(f"/proc/{pid}/status").read_text().split("SigIgn:")[1].split()[0]
    return bool(int(ignored, 16) >> (number - 1) & 1)


def _until(condition: object, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_it_outlasts_signals_but_not_its_worker(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _BECOME, str(tmp_path)]) as worker:
        try:
            shown = psutil.Process(worker.pid)
            _until(lambda: shown.name() == "sleep" and shown.children())
            (watcher,) = shown.children()
            _until(lambda: _ignores(watcher.pid, signal.SIGHUP))
            time.sleep(0.3)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                watcher.send_signal(number)
            time.sleep(0.3)
            assert watcher.is_running() and watcher.status() == psutil.STATUS_SLEEPING
            assert os.getsid(watcher.pid) == watcher.pid and watcher.cwd() == "/"
        finally:
            worker.kill()
        worker.wait()
        assert psutil.wait_procs([watcher], timeout=5)[1] == []


def test_it_ends_when_the_worker_was_gone_before_it_began(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ascendtune.job.hang.beside", "1", str(tmp_path)]
    assert subprocess.run(argv, timeout=20).returncode == 0
