"""Jobs of one worker under a real driver, ended in every way; torchrun is not needed for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ascendtune.core import procfs
from ascendtune.core.errors import CheckFailed, InputError, MachineError
from ascendtune.job import registry, stop
from ascendtune.job.members import members_of
from ascendtune.job.record import Job, state_of
from cluster import until

# With a restart allowed the driver stays beside its one worker.
_DRIVER = """
import sys
from pathlib import Path
from ascendtune.job.backend.local import start
from ascendtune.job.spec import JobSpec
worker = (sys.executable, "-c", sys.argv[2], sys.argv[1])
sys.exit(start(JobSpec(worker, Path(sys.argv[1]), nproc=1, kind="cpu", max_restarts=1)).exit_code)
"""
_WORKER = """
import signal, sys, time
from pathlib import Path
noted = Path(sys.argv[1]) / "noted"
def note(number, frame):
    with noted.open("a") as file:
        file.write(f"{number} ")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, note)
noted.touch()
while not (text := noted.read_text()) or "OBEYS" == "never":
    time.sleep(0.02)
time.sleep(SECONDS)
(noted.parent / "checkpoint").write_text("whole")
sys.exit(130)
"""
_SLOW = _WORKER.replace("SECONDS", "1").replace("OBEYS", "always")
_DEAF = _WORKER.replace("SECONDS", "1").replace("OBEYS", "never")


@dataclass
class Started:
    job: Job
    driver: subprocess.Popen[bytes]
    directory: Path

    @property
    def noted(self) -> list[int]:
        return [int(number) for number in (self.directory / "noted").read_text().split()]


@pytest.fixture(autouse=True)
def _impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(stop, "_TERMINATE_SECONDS", 0.5)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], Started]]:
    made: list[Started] = []

    def start(worker: str) -> Started:
        directory = tmp_path / "run"
        directory.mkdir()
        driver = subprocess.Popen([sys.executable, "-c", _DRIVER, str(directory), worker])
        until((directory / "noted").exists)
        made.append(Started(registry.find("run"), driver, directory))
        return made[-1]

    yield start
    for each in made:
        for stat in members_of(each.job):
            os.kill(stat.pid, signal.SIGKILL)
        each.driver.wait()


def _nothing(*anything: object) -> None: ...


def _stop(job: Job, grace: float = 20) -> tuple[stop.StopResult, str]:
    said: list[str] = []
    result = stop.stop(job, grace_seconds=grace, say=said.append, show=_nothing)
    return result, " ".join(line.split()[0] for line in said)


def test_a_worker_is_given_the_time_for_its_checkpoint(started: Callable[[str], Started]) -> None:
    job = started(_SLOW)
    assert _stop(job.job) == (stop.StopResult((), (), was_killed=False), "SIGINT")
    assert (job.directory / "checkpoint").read_text() == "whole" and job.noted == [signal.SIGINT]
    assert members_of(job.job) == [] and job.driver.wait(5) == 130
    ended = registry.find(job.job.id)
    assert (state_of(ended), ended.exit_code) == ("ended", 130)


def test_a_worker_that_ignores_everything_is_killed_in_the_end(started: Callable[[str], Started]) -> None:
    job = started(_DEAF)
    assert _stop(job.job, grace=0.3) == (stop.StopResult((), (), was_killed=True), "SIGINT SIGTERM SIGKILL")
    assert job.noted == [signal.SIGINT, signal.SIGTERM]
    assert members_of(job.job) == [] and job.driver.wait(5) == 130


def test_a_worker_whose_driver_was_killed_is_found_by_its_mark(started: Callable[[str], Started]) -> None:
    job = started(_DEAF)
    job.driver.kill()
    job.driver.wait()
    until(lambda: job.noted == [signal.SIGTERM])
    assert state_of(job.job) == "lost" and len(members_of(job.job)) == 2, "the worker and the guard"
    assert _stop(job.job) == (stop.StopResult((), (), was_killed=True), "SIGTERM SIGKILL")
    ended = registry.find(job.job.id)
    assert (state_of(ended), ended.exit_code) == ("ended", 137)


def test_a_driver_that_was_stopped_by_the_terminal_is_woken(started: Callable[[str], Started]) -> None:
    job = started(_SLOW)
    job.driver.send_signal(signal.SIGSTOP)
    result, _ = _stop(job.job)
    assert not result.was_killed and (job.directory / "checkpoint").exists()


def test_only_one_stops_a_job_and_the_other_says_who(started: Callable[[str], Started]) -> None:
    job = started(_SLOW)
    first = threading.Thread(target=_stop, args=(job.job,))
    first.start()
    until(lambda: job.noted)
    with pytest.raises(CheckFailed, match=f"being stopped already, by pid {os.getpid()} since "):
        _stop(job.job)
    first.join()
    assert job.noted == [signal.SIGINT] and (job.directory / "checkpoint").exists()


def test_a_job_that_was_asked_before_is_not_asked_again(started: Callable[[str], Started]) -> None:
    job = started(_SLOW)

    def leave(what: str, waited: float, limit: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop.stop(job.job, grace_seconds=20, say=_nothing, show=leave)
    assert _stop(job.job)[1] == "it"
    assert job.noted == [signal.SIGINT] and (job.directory / "checkpoint").exists()


def _noted_job(pid: int, tmp_path: Path) -> Job:
    """A record of this process, changed to name another."""
    from ascendtune.job.spec import JobSpec

    stat = procfs.stat_of(pid)
    assert stat is not None
    job = registry.register(JobSpec(("x",), tmp_path / "other", nproc=1, kind="cpu"), [], watched=True)
    return replace(job, pid=pid, start_ticks=stat.start_ticks)


def test_a_pid_that_was_used_again_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as innocent:
        job = _noted_job(innocent.pid, tmp_path)
        assert members_of(job)
        reused = replace(job, start_ticks=job.start_ticks - 1)
        assert members_of(reused) == [] and _stop(reused)[1] == ""
        assert innocent.poll() is None
        innocent.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to start a process of another user")
def test_another_users_process_is_refused(tmp_path: Path) -> None:
    become = "import os, time; os.setuid(65534); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", become], stdout=subprocess.PIPE) as theirs:
        assert theirs.stdout and theirs.stdout.readline()
        job = _noted_job(theirs.pid, tmp_path)
        for refused in (job, replace(job, uid=65534)):
            with pytest.raises(MachineError, match=f"belongs to nobody .pid {theirs.pid}"):
                _stop(refused)
        assert theirs.poll() is None
        theirs.kill()


def test_a_job_of_another_machine_is_stopped_there(tmp_path: Path) -> None:
    job = replace(_noted_job(os.getpid(), tmp_path), host="elsewhere", boot_id="of another machine")
    with pytest.raises(InputError, match="runs on elsewhere"):
        _stop(job)
