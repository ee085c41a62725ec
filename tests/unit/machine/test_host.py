from __future__ import annotations

import os
from pathlib import Path

from ascendtune.machine.host import inspect_host, numa_nodes


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_facts_of_this_host_are_plausible() -> None:
    host = inspect_host()
    assert host.hostname and host.kernel and host.cores_usable == len(os.sched_getaffinity(0))
    assert 0 < host.memory_available_bytes <= host.memory_total_bytes


def test_files_of_the_kernel(tmp_path: Path) -> None:
    _write(tmp_path / "etc/os-release", 'NAME="openEuler"\nPRETTY_NAME="openEuler 22.03 (LTS-SP3)"\n')
    _write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Kunpeng-920\n")
    for node in (10, 2, 0):
        _write(tmp_path / f"sys/devices/system/node/node{node}/cpulist", f"{node}-{node + 1}\n")
    host = inspect_host(tmp_path)
    assert (host.operating_system, host.cpu_name) == ("openEuler 22.03 (LTS-SP3)", "Kunpeng-920")
    assert list(host.numa_nodes.items()) == [("0", "0-1"), ("2", "2-3"), ("10", "10-11")]
    assert host.shared_memory_total_bytes is None


def test_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    host = inspect_host(tmp_path)
    assert (host.operating_system, host.cpu_name, numa_nodes(tmp_path)) == (None, None, {})
