"""The owner of each process, with a stand-in for torchrun's agent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ascendtune.job.launcher import Launcher
from cluster import until

# Starts one worker when it is told to, and stays for a while when that has ended.
_AGENT = """
import os, subprocess, sys, time
from pathlib import Path
place = Path(sys.argv[1])
while not (place / "begin").exists():
    time.sleep(0.02)
subprocess.run(["/bin/sh", "-c", f"until [ -e {place}/end ]; do sleep 0.02; done"], env={**os.environ, "RANK": "3"})
time.sleep(60)
"""


def test_the_agent_stands_for_its_workers_until_they_have_begun_and_never_after(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _AGENT, str(tmp_path)]
    launcher = Launcher(argv, dict(os.environ), stdin=None, stderr=tmp_path / "log")
    try:
        ((rank, agent),) = launcher.workers().items()
        assert rank == 0 and agent.parent == os.getpid()
        (tmp_path / "begin").touch()
        until(lambda: set(launcher.workers()) == {3})
        assert launcher.workers()[3].parent == agent.pid
        (tmp_path / "end").touch()
        until(lambda: launcher.workers() == {})
    finally:
        launcher.kill()
        launcher.wait()
        launcher.end_descendants()
