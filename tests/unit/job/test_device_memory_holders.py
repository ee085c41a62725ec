from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ascend_node.node import Chip, Node, Process
from ascendtune.core.procfs import Stat
from ascendtune.job import device_memory_holders as held
from ascendtune.job import registry
from ascendtune.job.device_memory_holders import DeviceMemoryHolder, devices_of
from ascendtune.job.spec import JobSpec
from ascendtune.machine import inventory
from ascendtune.machine.inventory import Accelerator, DeviceProcess

MIB = 1 << 20
ENDED = [Stat(4711, "python", "S", 1, 4711, 4711, 1)]


def test_a_container_and_its_host_count_processes_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = DeviceProcess(70, container_pid=7, memory_used_bytes=9 * MIB)
    devices = [Accelerator("npu", npu_id=0, processes=(ours,))]
    monkeypatch.setattr(inventory, "is_first_pid_namespace", lambda: False)
    assert devices_of([7, 70], devices) == {7: [DeviceMemoryHolder("NPU 0", 7, 9 * MIB)]}
    monkeypatch.setattr(inventory, "is_first_pid_namespace", lambda: True)
    assert devices_of([7, 70], devices) == {70: [DeviceMemoryHolder("NPU 0", 70, 9 * MIB)]}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> registry.Job:
    """On the second of two NPUs; the process that has ended is still listed on the first, and both are full."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(held, "_RELEASE_SECONDS", 0)
    listed = Chip(memory_used_megabytes=30000, processes=(Process(4711, "python", 29000),))
    node = Node(chips=(listed, Chip(memory_used_megabytes=20000)))
    monkeypatch.setenv("PATH", node.lay_out(tmp_path / "machine")["PATH"])
    return registry.register(JobSpec(("x",), tmp_path, 1, "npu", device_ids=("1",)), [], watched=True)


def test_memory_of_ended_processes_and_unexplained_memory_are_reported(job: registry.Job) -> None:
    named, unexplained = DeviceMemoryHolder("NPU 0", 4711, 29000 * MIB), DeviceMemoryHolder("NPU 1", None, 20000 * MIB)
    assert held.holders_after(job, ENDED, 0) == (named, unexplained)
    assert held.holders_after(replace(job, device_ids=None), ENDED, 0) == (named,)
    assert held.holders_after(replace(job, device_ids=("0",)), [], 0) == ()
    assert held.holders_after(replace(job, kind="cpu"), ENDED, 0) == ()


def test_the_share_that_the_driver_always_holds_is_not_a_problem(
    job: registry.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", Node().lay_out(tmp_path / "idle")["PATH"])
    assert held.holders_after(job, ENDED, 0) == ()
