"""After a kill of any process of a job, nothing is left, and the same command continues exactly."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ascendtune.core.rundir import RunDir
from workplace import Workplace, furnish

pytestmark = pytest.mark.usefixtures("preloaded")


def _furnished(path: Path, tiny_model: Path, *words: str, **variables: str) -> Workplace:
    furnished = furnish(path, tiny_model, rows=60, steps=40, per_device=1, every_steps=3)
    workplace = replace(furnished, words=words, variables=variables)
    assert workplace.start("unbroken").wait(180) == 0, workplace.said("unbroken")
    return workplace


def _family(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """The command and everything below it, whose parents still live."""
    try:
        command = psutil.Process(job.pid)
        return [command, *command.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill_and_go_on(workplace: Workplace, seeds: range, others: Callable[[], list[int]] = list) -> None:
    """One run, broken once for each seed, then finished: it is the unbroken one.

    Args:
        others: pids of the job that are not below the command, on other hosts.
    """
    run, killed = workplace.run("broken"), 0
    for seed in seeds:
        draw, began = random.Random(seed), time.time()
        job = workplace.start("broken")
        _wait_for_a_step(job, run, began)
        time.sleep(draw.uniform(0, 0.5))
        family = _family(job)
        alive = [each.pid for each in family if _may_be_killed(each)]
        if job.poll() is not None or not alive:
            break
        doomed = draw.choice(alive + others())
        os.kill(doomed, signal.SIGKILL)
        killed += 1
        assert job.wait(90) != 0 or run.read()["state"] == "finished", f"seed {seed}: nobody noticed"
        _, left = psutil.wait_procs(family, timeout=10)
        assert not left, f"seed {seed}: {left} are left"
        deadline = time.monotonic() + 10
        while others():
            assert time.monotonic() < deadline, f"seed {seed}: {others()} are left on another host"
            time.sleep(0.1)
        if run.read()["state"] == "finished":
            break
    assert killed
    if run.read()["state"] != "finished":
        assert workplace.start("broken").wait(180) == 0, workplace.said("broken")
    assert workplace.exact("broken") == workplace.exact("unbroken")


def _may_be_killed(process: psutil.Process) -> bool:
    """It lives, and the job does not go on without it, as without the guard."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "ascendtune.job.guard" not in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _wait_for_a_step(job: subprocess.Popen[str], run: RunDir, began: float) -> None:
    """Until the attempt of `job` has recorded a step, and has a checkpoint: without one a start takes a new name."""
    deadline = time.monotonic() + 90
    while job.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        attempts = run.read()["attempts"] if run.run_json.exists() else []
        is_ours = attempts and attempts[-1]["started"] > began and run.checkpoint_steps()
        if is_ours and any(line["attempt"] == len(attempts) for line in run.read_metrics()):
            return


def test_five_kills_on_this_machine(tmp_path: Path, tiny_model: Path) -> None:
    _kill_and_go_on(_furnished(tmp_path, tiny_model, "--devices", "2"), range(5))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 140, 5))
def test_forty_kills_on_this_machine(tmp_path: Path, tiny_model: Path, first: int) -> None:
    workplace = _furnished(tmp_path, tiny_model, "--devices", "2")
    _kill_and_go_on(workplace, range(first, first + 5))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(200, 210, 5))
def test_ten_kills_on_two_hosts(tmp_path: Path, tiny_model: Path, cluster: Any, first: int) -> None:
    path = cluster.environment()["PATH"]
    workplace = _furnished(tmp_path, tiny_model, "--nodes", "nodea,nodeb", PATH=path)
    _kill_and_go_on(workplace, range(first, first + 5), cluster.everything)
