"""Processes that lost their parents: which are found and ended."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core import procfs
from ascendtune.job import cleanup, registry
from ascendtune.job.cleanup import Leftover, end, find_leftovers
from ascendtune.job.spec import JobSpec
from ascendtune.machine.inventory import Accelerator, DeviceProcess

_ORPHAN = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else signal.SIG_DFL)
held = open(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] != "deaf" else None
if "nobody" in sys.argv:
    os.setuid(65534)
print(os.getpid(), flush=True)
os.close(1)
time.sleep(120)
"""
Orphan = Callable[..., int]


@pytest.fixture
def orphan() -> Iterator[Orphan]:
    """Starts a process whose parent ends; returns its pid."""
    made: list[int] = []

    def start(*words: object, **env: str) -> int:
        argv = [sys.executable, "-c", _ORPHAN, *map(str, words)]
        done = subprocess.run(
            argv, env={**os.environ, **env}, stdout=subprocess.PIPE, start_new_session=True, check=True
        )
        made.append(int(done.stdout))
        return made[-1]

    yield start
    for pid in made:
        if procfs.stat_of(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """Where device files are."""
    path = tmp_path / "dev"
    path.mkdir()
    for name in ("davinci0", "davinci_manager"):
        (path / name).touch()
    return path


def _lost_job(tmp_path: Path) -> str:
    """A job whose process was killed."""
    job = registry.register(JobSpec(("x",), tmp_path / "a", nproc=1, kind="cpu"), [], watched=True)
    path = tmp_path / "ascendtune" / "jobs" / f"{job.id}.json"
    path.write_text(json.dumps({**job.as_json(), "start_ticks": job.start_ticks - 1}))
    return job.id


def _cleanup(*words: str, env: dict[str, str] | None = None) -> tuple[int, list[dict[str, Any]]]:
    argv = [sys.executable, "-m", "ascendtune", "jobs", "cleanup", "--json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **(env or {})}, timeout=60)
    return done.returncode, json.loads(done.stdout)


def _found(pid: int, found: list[Leftover]) -> Leftover | None:
    return next((each for each in found if each.stat.pid == pid), None)


def test_leftovers_of_a_lost_job_are_ended_only_with_yes(orphan: Orphan, tmp_path: Path) -> None:
    job_id = _lost_job(tmp_path)
    left, of_another_registry = orphan(ASCENDTUNE_JOB=job_id), orphan(ASCENDTUNE_JOB="elsewhere-abcd")
    code, found = _cleanup()
    told = {each["pid"]: each for each in found}
    assert code == 1 and told[left]["job"] == job_id and told[left]["is_ours"] and not told[left]["ended"]
    assert told[left]["uid"] == os.getuid() and told[left]["command"].startswith(sys.executable)
    assert procfs.stat_of(left) is not None
    _, found = _cleanup("--yes")
    assert {each["pid"] for each in found if each["ended"]} == {left}
    assert procfs.stat_of(left) is None and procfs.stat_of(of_another_registry) is not None


def test_a_running_job_and_the_one_who_asks_are_spared(orphan: Orphan, tmp_path: Path) -> None:
    running = registry.register(JobSpec(("x",), tmp_path / "b", nproc=1, kind="cpu"), [], watched=True)
    member = orphan(ASCENDTUNE_JOB=running.id)
    assert _found(member, find_leftovers(())) is None
    # Asked from a shell that a lost job has left.
    _, found = _cleanup(env={"ASCENDTUNE_JOB": _lost_job(tmp_path)})
    assert not any("jobs cleanup" in each["command"] for each in found)


def test_worker_of_another_registry_with_a_parent_is_not_a_leftover() -> None:
    mark = {"ASCENDTUNE_JOB": "elsewhere-abcd"}
    with subprocess.Popen(["sleep", "60"], env=mark, start_new_session=True) as child:
        assert _found(child.pid, find_leftovers(())) is None
        child.kill()


def test_orphan_that_holds_a_device_is_a_leftover(orphan: Orphan, dev: Path) -> None:
    holder, bystander = orphan(dev / "davinci0"), orphan(dev / "davinci_manager")
    found = find_leftovers((), dev)
    told = _found(holder, found)
    assert told is not None and told.devices == ("davinci0",) and told.memory_used_bytes is None
    assert told.job_id is None and told.may_be_ended and not told.is_ours
    assert _found(bystander, found) is None
    listed = Accelerator("npu", npu_id=3, processes=(DeviceProcess(bystander, memory_used_bytes=5 << 30),))
    told = _found(bystander, find_leftovers([listed], dev))
    assert told is not None and told.devices == ("NPU 3",) and told.memory_used_bytes == 5 << 30


def test_a_process_with_its_parent_may_hold_a_device(dev: Path) -> None:
    with subprocess.Popen(["sleep", "60"], stdin=(dev / "davinci0").open()) as child:
        assert str(dev / "davinci0") in procfs.open_files(child.pid)
        assert _found(child.pid, find_leftovers((), dev)) is None
        child.kill()


def test_a_deaf_process_is_killed(orphan: Orphan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_TERMINATE_SECONDS", 0.3)
    pid = orphan("deaf", ASCENDTUNE_JOB=_lost_job(tmp_path))
    told = _found(pid, find_leftovers(()))
    assert told is not None and end([told]) == []
    assert procfs.stat_of(pid) is None


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to start a process of another user")
def test_another_users_process_is_shown_and_never_ended(orphan: Orphan, dev: Path) -> None:
    pid = orphan(dev / "davinci0", "nobody")
    told = _found(pid, find_leftovers((), dev))
    assert told is not None and told.uid == 65534 and not told.may_be_ended
    assert end([told]) == []
    time.sleep(0.2)
    assert procfs.stat_of(pid) is not None


def test_only_the_numbers_that_a_user_names_are_ended(orphan: Orphan, tmp_path: Path) -> None:
    job_id = _lost_job(tmp_path)
    spared, doomed = orphan(ASCENDTUNE_JOB=job_id), orphan(ASCENDTUNE_JOB=job_id)
    terminal, users_end = pty.openpty()
    argv = [sys.executable, "-m", "ascendtune", "jobs", "cleanup"]
    with subprocess.Popen(argv, stdin=users_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asked:
        assert asked.stdout
        rows: dict[str, str] = {}
        while str(doomed) not in rows:
            number, pid, *_ = asked.stdout.readline().split()
            rows[pid] = number
        os.write(terminal, f"{rows[str(doomed)]}\n".encode())
        said = asked.stdout.read()
    os.close(terminal)
    os.close(users_end)
    assert asked.returncode == 1 and f"ended: {doomed}\n" in said
    assert procfs.stat_of(doomed) is None and procfs.stat_of(spared) is not None
