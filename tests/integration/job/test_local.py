"""Jobs of two processes under the real torchrun: output, causes, signals, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ascendtune.core.rundir import RunDir
from cluster import until

pytestmark = pytest.mark.usefixtures("preloaded")


def _start(run: RunDir, how: str, *, nproc: int = 2, max_restarts: int = 0) -> subprocess.Popen[str]:
    driver, worker = (str(Path(__file__).with_name(name)) for name in ("start_job.py", "pretend_worker.py"))
    return subprocess.Popen(
        [sys.executable, driver, str(run), how, worker, str(nproc), str(max_restarts)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _pids(run: RunDir) -> list[int]:
    paths = [run.path / f"pid_{rank}" for rank in (0, 1)]
    until(lambda: all(path.exists() and path.read_text() for path in paths))
    return [int(path.read_text()) for path in paths]


def _said(job: subprocess.Popen[str], words: str) -> None:
    """Wait until stderr has a line with `words`."""
    assert job.stderr
    assert any(words in line for line in job.stderr), "it has ended without them"


def _gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def test_rank_0_writes_to_the_terminal_and_other_ranks_to_their_logs(run: RunDir) -> None:
    job = _start(run, "finish")
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert out == "out 0\n"
    assert err == "err 0 2\n"
    assert (run.logs / "rank_1.log").read_text() == "out 1\nerr 1 2\n"
    assert run.read()["state"] == "finished"


def test_the_failing_ranks_message_comes_last_with_its_exit_code(run: RunDir) -> None:
    job = _start(run, "fail")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "error: rank 1: the loss is not a number\n   do: lower it\nwhere: " in err
    assert err.rstrip().endswith("rank_1.log")
    assert "Traceback" not in err and "ChildFailedError" not in err
    assert "ChildFailedError" in (run.logs / "launcher.log").read_text()
    assert _gone(_pids(run))


def test_a_killed_rank_is_named_although_it_could_say_nothing(run: RunDir) -> None:
    job = _start(run, "die")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "rank 1 was killed (SIGKILL)" in err and "Traceback" not in err
    assert run.read()["state"] == "failed"
    assert run.read()["exit_cause"]["what"] == "rank 1 was killed (SIGKILL)"
    assert _gone(_pids(run))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_reaches_every_worker_once(run: RunDir, number: signal.Signals) -> None:
    job = _start(run, "wait")
    pids = _pids(run)
    job.send_signal(number)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 128 + number
    assert "once more stops now" in err and "Traceback" not in err
    assert [(run.path / f"stopped_{rank}").read_text() for rank in (0, 1)] == [str(int(number))] * 2
    assert _gone(pids)


def test_a_signal_to_every_process_of_a_job_leaves_the_ranks_time_for_a_checkpoint(run: RunDir) -> None:
    """As Slurm and systemd send it: torchrun would kill the ranks 30 s later."""
    job = _start(run, "wait")
    pids = _pids(run)
    for each in (job.pid, psutil.Process(pids[0]).ppid(), *pids):
        os.kill(each, signal.SIGTERM)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 143 and "Traceback" not in err
    assert "SignalException" not in (run.logs / "launcher.log").read_text()
    assert _gone(pids)


def test_a_program_that_is_the_whole_job_gets_ctrl_c(run: RunDir) -> None:
    job = _start(run, "wait", nproc=1)
    until(lambda: (run.path / "pid_0").exists())
    job.send_signal(signal.SIGINT)
    assert job.wait(20) == 130
    assert (run.path / "stopped_0").read_text() == str(int(signal.SIGINT))


def test_the_second_signal_ends_everything_at_once(run: RunDir) -> None:
    job = _start(run, "deaf")
    pids = _pids(run)
    job.send_signal(signal.SIGINT)
    _said(job, "once more stops now")
    began = time.monotonic()
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert job.returncode == 130
    assert _gone(pids)
    assert run.read()["state"] == "stopped"


def test_the_second_signal_ends_at_once_what_outlives_torchrun(run: RunDir) -> None:
    job = _start(run, "deaf")
    pids = _pids(run)
    (agent,) = {psutil.Process(pid).ppid() for pid in pids}
    os.kill(agent, signal.SIGKILL)
    time.sleep(1)
    # They would be given a minute for a checkpoint.
    job.send_signal(signal.SIGINT)
    _said(job, "once more stops now")
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=50)
    assert _gone(pids)


def test_no_orphan_is_left_when_the_command_is_killed(run: RunDir) -> None:
    job = _start(run, "wait")
    pids = _pids(run)
    agents = {psutil.Process(pid).ppid() for pid in pids}
    job.kill()
    job.wait(60)
    until(lambda: _gone([*pids, *agents]))
    until(lambda: not list(run.logs.glob(".torchrun*")))
    assert (run.path / "stopped_0").read_text() == str(int(signal.SIGTERM))


def test_no_orphan_is_left_after_ten_seconds_when_workers_ignore_signals(run: RunDir) -> None:
    job = _start(run, "deaf")
    pids = _pids(run)
    family = [each.pid for each in psutil.Process(job.pid).children(recursive=True)]
    assert set(pids) < set(family)
    job.kill()
    job.wait(60)
    until(lambda: _gone(family), 10)


def test_no_orphan_is_left_when_torchrun_is_killed(run: RunDir) -> None:
    job = _start(run, "wait")
    pids = _pids(run)
    os.kill(psutil.Process(pids[0]).ppid(), signal.SIGKILL)
    job.communicate(timeout=60)
    assert job.returncode != 0
    assert _gone(pids)


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_killed_job_starts_again(run: RunDir, nproc: int) -> None:
    job = _start(run, "die-once", nproc=nproc, max_restarts=2)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert "was killed (SIGKILL)); resuming from the beginning, 1 restart left" in err
    assert [each["state"] for each in run.read()["attempts"]] == ["failed", "finished"]


def test_the_same_failure_without_progress_is_not_tried_for_ever(run: RunDir) -> None:
    job = _start(run, "fail", nproc=2, max_restarts=9)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "no further restart" in err
    assert len(run.read()["attempts"]) == 2


def test_a_stop_is_not_a_failure_to_be_tried_again(run: RunDir) -> None:
    job = _start(run, "wait", nproc=1, max_restarts=9)
    until(lambda: (run.path / "pid_0").exists())
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=60)
    assert job.returncode == 130
    assert len(run.read()["attempts"]) == 1
