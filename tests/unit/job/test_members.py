"""The processes of a job: its mark alone is not sufficient."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.procfs import stat_of
from ascendtune.core.rundir import JOB_MARK
from ascendtune.job import registry
from ascendtune.job.members import members_of
from ascendtune.job.record import Job
from ascendtune.job.spec import JobSpec


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return JobSpec(("program",), tmp_path / "run", nproc=1, kind="cpu")


@pytest.fixture
def carry_mark(spec: JobSpec) -> Iterator[Any]:
    """Start a process that has the job's mark, and nothing else to do with it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**how: Any) -> int:
        started.append(subprocess.Popen(["sleep", "60"], env={**os.environ, JOB_MARK: spec.id}, **how))
        return started[-1].pid

    yield start
    for each in started:
        each.kill()
        each.wait()


def _lost(spec: JobSpec) -> Job:
    """Registered by a process that has ended since."""
    ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    return replace(registry.register(spec, [], watched=True), pid=2**22 - 1, start_ticks=ticks)


def test_members_of_a_lost_job_are_found_by_their_mark(spec: JobSpec, carry_mark: Any) -> None:
    job = _lost(spec)
    time.sleep(0.05)
    pid = carry_mark()
    assert [stat.pid for stat in members_of(job)] == [pid]


def test_process_older_than_the_job_is_not_a_member(spec: JobSpec, carry_mark: Any) -> None:
    carry_mark()
    time.sleep(0.05)
    assert members_of(_lost(spec)) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to start a process of another user")
def test_another_users_process_is_not_its(spec: JobSpec, carry_mark: Any) -> None:
    job = _lost(spec)
    time.sleep(0.05)
    carry_mark(user=65534)
    assert members_of(job) == []


def test_process_that_started_the_job_is_its_although_it_carries_no_mark(spec: JobSpec) -> None:
    with subprocess.Popen(["sleep", "60"]) as driver:
        try:
            stat = stat_of(driver.pid)
            assert stat is not None
            job = replace(registry.register(spec, [], watched=True), pid=stat.pid, start_ticks=stat.start_ticks)
            assert [each.pid for each in members_of(job)] == [driver.pid]
        finally:
            driver.kill()
