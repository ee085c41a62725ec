from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ascendtune.core.procfs import Stat
from ascendtune.job import held, registry
from ascendtune.job.held import Held, devices_of
from ascendtune.job.spec import JobSpec
from ascendtune.machine.inventory import Accelerator, DeviceProcess
from ascendtune.machine.snapshot import take_snapshot

GIB = 1 << 30
OURS = DeviceProcess(70, container_pid=7, memory_used_bytes=9 * GIB)
DEVICES = (
    Accelerator(
        "npu", npu_id=0, logical_id=0, memory_used_bytes=3 * GIB, memory_total_bytes=64 * GIB, processes=(OURS,)
    ),
    Accelerator("npu", npu_id=1, logical_id=1, memory_used_bytes=30 * GIB, memory_total_bytes=64 * GIB),
)
ENDED = [Stat(7, "python", "S", 1, 7, 7, 1)]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> registry.Job:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(held, "_RELEASE_SECONDS", 0)
    return registry.register(JobSpec(("x",), tmp_path, 1, "npu", device_ids=("1",)), [], watched=True)


def test_a_container_and_its_host_count_processes_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "is_first_pid_namespace", lambda: False)
    assert devices_of([7, 70], DEVICES) == {7: [Held("NPU 0", 7, 9 * GIB)]}
    monkeypatch.setattr(held, "is_first_pid_namespace", lambda: True)
    assert devices_of([7, 70], DEVICES) == {70: [Held("NPU 0", 70, 9 * GIB)]}


def test_memory_of_ended_processes_is_told_and_memory_that_nobody_explains(
    job: registry.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "is_first_pid_namespace", lambda: False)
    monkeypatch.setattr(held, "take_snapshot", lambda: replace(take_snapshot(), devices=DEVICES))
    assert held.held_after(job, ENDED, 0) == (Held("NPU 0", 7, 9 * GIB), Held("NPU 1", None, 30 * GIB))
    assert held.held_after(replace(job, device_ids=None), ENDED, 0) == (Held("NPU 0", 7, 9 * GIB),)
    assert held.held_after(replace(job, kind="cpu"), ENDED, 0) == ()
    assert held.held_after(replace(job, device_ids=("0",)), [], 0) == ()
