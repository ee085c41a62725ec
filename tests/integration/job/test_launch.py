"""`ascendtune launch` and `--detach`, with the real torchrun: each start of it costs seconds, so each shows much."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.core import procfs
from ascendtune.job import registry
from ascendtune.job.cleanup import find_leftovers
from ascendtune.job.members import members_of
from ascendtune.job.record import state_of
from cluster import until

pytestmark = pytest.mark.usefixtures("preloaded")

_ASCENDTUNE = (sys.executable, "-m", "ascendtune")
_TELL = """
import os, sys, time
rank = os.environ["RANK"]
print("out", rank, os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], os.environ["MASTER_PORT"].isdigit(), flush=True)
print("err", os.environ["ASCENDTUNE_JOB"], file=sys.stderr, flush=True)
if rank == "0":
    open("rank_0_has_printed", "x").close()
    sys.exit(0)
while not os.path.exists("rank_0_has_printed"):  # The first failure ends the others.
    time.sleep(0.01)
sys.exit(7)
"""
_TICK = """
import time
for number in range(1200):
    print("tick", number)
    time.sleep(0.05)
"""


_VICTIM = """
import os, sys, time, traceback
if os.environ["RANK"] == "0":
    while not os.path.exists("rank_1_has_printed"):
        time.sleep(0.01)
    raise RuntimeError("[/third_party/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5102")
try:
    {}["labels"]
except KeyError:
    traceback.print_exc()
    open("rank_1_has_printed", "x").close()
time.sleep(30)
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_ASCENDTUNE, *words], capture_output=True, text=True, timeout=90, check=False)


def test_every_rank_is_heard_and_the_first_failure_is_the_exit_code() -> None:
    done = _run("launch", "--devices", "2", "--name", "smoke", "--", sys.executable, "-c", _TELL)
    (job,) = registry.jobs()
    assert done.returncode == job.exit_code == 7 and job.name == "smoke"
    lines = done.stdout.splitlines()
    for rank in (0, 1):
        mine = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert sorted(mine) == [f"[rank {rank}] err {job.id}", f"[rank {rank}] out {rank} 2 {rank} True"]
    assert "error: rank 1 ended with exit code 7\n" in done.stderr and "Traceback" not in done.stderr
    assert f"where: {job.logs / 'rank_1.log'}\n" in done.stderr
    assert f"   do: look at the end of its log; `ascendtune explain {job.id}` finds" in done.stderr
    assert _run("explain", job.id).returncode != 2
    assert _run("jobs", "logs", "smoke", "--rank", "0", "--lines", "1").stdout in map("{}\n".format, lines)
    assert members_of(job) == []


def test_the_rank_that_raised_is_named_and_not_the_one_that_ended_first() -> None:
    done = _run("launch", "--devices", "2", "--name", "victim", "--", sys.executable, "-c", _VICTIM)
    (job,) = registry.jobs()
    assert done.returncode == 1
    assert "error: rank 1: there is no 'labels' in a table or configuration\n" in done.stderr
    assert f"where: {job.logs / 'rank_1.log'}:" in done.stderr
    explained = _run("explain", "victim").stdout
    assert explained == _run("explain", str(job.logs)).stdout
    assert "there is no 'labels' in a table or configuration (rank 1)" in explained


def test_a_missing_program_is_found_before_anything_starts() -> None:
    done = _run("launch", "--", "./nothing.sh")
    assert done.returncode == 2 and "no such program: './nothing.sh'" in done.stderr
    assert list(registry.jobs()) == []


def test_a_detached_job_outlives_its_terminal_and_is_followed_and_stopped() -> None:
    words = ["launch", "--devices", "2", "--name", "tick", "--detach", "--", sys.executable, "-c", _TICK]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [*_ASCENDTUNE, *words])
    said = b""
    while b"jobs stop" not in said:
        said += os.read(terminal, 1000)
    # The terminal is closed: the kernel sends SIGHUP to its session.
    os.close(terminal)
    os.waitpid(child, 0)
    job = registry.find("tick")
    assert f"ascendtune jobs logs -f {job.id}" in said.decode()
    assert job.session == job.pid != os.getsid(0)
    until(lambda: "tick 3" in _logs(job.logs / "rank_0.log"))
    assert state_of(job) == "running"
    looked = _run("jobs", "stacks", "tick")
    assert looked.returncode == 0 and looked.stdout.startswith("ranks 0, 1: running for "), looked.stderr
    words = [*_ASCENDTUNE, "jobs", "logs", "tick", "-f"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as follower:
        stopped = _run("jobs", "stop", "tick")
        out, _ = follower.communicate(timeout=30)
    assert stopped.returncode == 0, stopped.stderr
    assert f"{job.id} has ended: every process is gone\n" in stopped.stdout
    assert follower.returncode == 0 and "[rank 0] tick " in out and "[rank 1] tick " in out
    assert "KeyboardInterrupt" in out, "what comes at the very end is shown, too"
    again = _run("jobs", "stop", "tick")
    assert again.returncode == 0 and "does not run: stopped" in again.stdout


def test_no_process_is_left_ten_seconds_after_the_driver_is_killed() -> None:
    assert _run("launch", "--detach", "--name", "tick", "--", sys.executable, "-c", _TICK).returncode == 0
    job = registry.find("tick")
    until(lambda: "tick 3" in _logs(job.logs / "rank_0.log"))
    pids = {stat.pid for stat in members_of(job)}
    assert len(pids) == 4, "the driver, its guard, torchrun and the worker"
    os.kill(job.pid, signal.SIGKILL)
    until(lambda: not any(procfs.stat_of(pid) for pid in pids), 10)
    assert members_of(job) == []
    assert state_of(registry.find("tick")) == "lost"
    assert not [each for each in find_leftovers(()) if each.job_id == job.id]
    said = (job.logs / "launcher.log").read_text()
    assert f"error: the process that started the job (pid {job.pid}) has ended" in said


def test_a_shell_script_is_stopped_together_with_what_it_waits_for(tmp_path: Path) -> None:
    script = tmp_path / "slow.sh"
    script.write_text("#!/bin/sh\necho begun\nsleep 60\n")
    script.chmod(0o755)
    assert _run("launch", "--detach", "--", str(script)).returncode == 0
    job = registry.find("slow")
    until(lambda: "begun" in _logs(job.logs / "rank_0.log"))
    began = time.monotonic()
    stopped = _run("jobs", "stop", "slow", "--yes")
    assert stopped.returncode == 0 and "killed" not in stopped.stdout and time.monotonic() - began < 15
    assert members_of(job) == []


def _logs(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_full_disk_of_the_registry_is_told_before_anything_starts(
    disk: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = disk("size=2m")
    (place / "filler").write_bytes(bytes(3 << 19))
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    done = _run("launch", "--", "true")
    assert done.returncode == 3
    assert done.stderr.startswith(
        "error: the disk is full while registering the job\n   do: free space there, or export "
    )
    assert "export XDG_STATE_HOME=" in done.stderr and list((place / "ascendtune" / "jobs").iterdir()) == []


@pytest.mark.parametrize(("code", "told"), [(0, 0), (5, 3)])
def test_a_disk_that_fills_up_is_the_cause_of_a_failure_and_not_of_a_lost_job(
    disk: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, code: int, told: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(disk("size=2m")))
    fill = "from contextlib import suppress\nwith suppress(OSError), open('disk/filler', 'wb', 0) as file:\n"
    fill += f"    while file.write(bytes(4096)): pass\nraise SystemExit({code})"
    done = _run("launch", "--name", "late", "--", sys.executable, "-c", fill)
    assert done.returncode == told and "Traceback" not in done.stderr
    assert ("error: the disk is full while writing the logs\n" in done.stderr) is bool(code)
    job = registry.find("late")
    assert (state_of(job), job.exit_code) == ("ended", told)
