"""The two machines of the tests leave nothing behind, however the tests end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cluster import until
from python_path import python_path

NAME = f"atk{os.getpid() % 100000}"
TESTS = f"""
import subprocess, time
from cluster import removed_at_the_end
with removed_at_the_end("{NAME}br", ["{NAME}a"]):
    subprocess.run("ip link add {NAME}br type bridge && ip netns add {NAME}a", shell=True, check=True)
    inside = subprocess.Popen(["ip", "netns", "exec", "{NAME}a", "sleep", "600"], start_new_session=True)
    print(inside.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2")
def test_machines_are_removed_when_the_tests_are_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", TESTS], stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as tests:
        assert tests.stdout is not None
        inside = int(tests.stdout.readline())
        assert Path("/run/netns", f"{NAME}a").exists()
        os.killpg(tests.pid, signal.SIGKILL)
    until(lambda: not Path("/sys/class/net", f"{NAME}br").exists())
    assert not Path("/run/netns", f"{NAME}a").exists()
    until(lambda: not _is_running(inside))


def _is_running(pid: int) -> bool:
    """Whether the process runs. A killed one stays a zombie if the process of the tests adopts orphans."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
