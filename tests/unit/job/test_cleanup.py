"""Processes that earlier jobs have left behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ascendtune.core.procfs import Stat
from ascendtune.core.rundir import JOB_MARK
from ascendtune.job import cleanup, registry
from ascendtune.job.spec import JobSpec
from ascendtune.machine.inventory import Accelerator, DeviceProcess


def test_process_of_a_job_is_left_behind_when_the_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    job = registry.register(JobSpec(("x",), tmp_path / "run", nproc=1, kind="cpu"), [], watched=True)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, JOB_MARK: job.id}) as worker:
        try:
            assert worker.pid not in {each.stat.pid for each in cleanup.find_leftovers([], tmp_path)}
            registry.close(job, 0)
            [found] = [each for each in cleanup.find_leftovers([], tmp_path) if each.stat.pid == worker.pid]
            assert found.job_id == job.id and found.is_ours
        finally:
            worker.kill()


@pytest.mark.parametrize(("parent", "is_lost"), [(1, True), (0, False), (7, False)])
def test_first_process_of_a_session_has_lost_its_parent_when_init_is_its_parent(parent: int, is_lost: bool) -> None:
    assert cleanup._has_lost_its_parent(Stat(50, "worker", "S", parent, 50, 50, 1)) == is_lost


def test_of_processes_without_a_parent_only_those_on_a_device_are_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    plain = {name: value for name, value in os.environ.items() if name != JOB_MARK}
    with subprocess.Popen(["sleep", "60"], env=plain) as one, subprocess.Popen(["sleep", "60"], env=plain) as other:
        try:
            monkeypatch.setattr(cleanup, "_has_lost_its_parent", lambda stat: stat.pid in (one.pid, other.pid))
            device = Accelerator("npu", processes=(DeviceProcess(one.pid, "sleep", 1),))
            assert [each.stat.pid for each in cleanup.find_leftovers([device], tmp_path)] == [one.pid]
        finally:
            one.kill()
            other.kill()
