"""Memory and disk of a process: limits of control groups, and the real places of caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.system import System

Lay = Callable[..., System]
_STEP = "system.slice/slurmstepd.scope/job_7/step_0"


@pytest.mark.parametrize(
    ("group", "file"),
    [
        (f"0::/{_STEP}/user/task_0\n", f"sys/fs/cgroup/{_STEP}/memory.max"),
        (f"9:cpu:/\n4:memory,hugetlb:/{_STEP}\n0::/\n", f"sys/fs/cgroup/memory/{_STEP}/memory.limit_in_bytes"),
        # A container that shows the host's path, and mounts its own group as the root.
        ("4:memory:/docker/0c1f\n", "sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ],
    ids=["Slurm", "version 1", "container"],
)
def test_the_lowest_limit_counts_wherever_it_is_set(lay: Lay, group: str, file: str) -> None:
    system = lay("healthy-910b4")
    for path, text in (("proc/self/cgroup", group), (file, f"{8 << 30}\n")):
        (system.root / path).parent.mkdir(parents=True, exist_ok=True)
        (system.root / path).write_text(text)
    (found,) = examine(system, ["memory_limit"]).findings
    assert found.status == "warning" and found.measured.startswith("8.0 GiB of host memory")


def test_the_download_directory_follows_the_caches(lay: Lay, tmp_path: Path) -> None:
    (tmp_path / "full/huggingface/hub").mkdir(parents=True)
    system = lay("healthy-910b4", XDG_CACHE_HOME=str(tmp_path / "full"))
    space = system.space
    small = replace(system, space=lambda path: (1 << 30, 1 << 40) if "full" in path.parts else space(path))
    (found,) = examine(small, ["disk"]).findings
    assert found.measured == f"the download directory {tmp_path}/full/huggingface/hub has 1.0 GiB free"


def test_a_place_without_locks_is_called_by_its_name(lay: Lay, tmp_path: Path) -> None:
    system = lay("healthy-910b4", HF_HOME=str(tmp_path / "hub"))
    (tmp_path / "hub").mkdir()
    (system.root / "proc/self/mountinfo").parent.mkdir(parents=True, exist_ok=True)
    mount = f"36 35 0:40 / {tmp_path / 'hub'} rw - nfs server:/hub rw,vers=3,nolock"
    (system.root / "proc/self/mountinfo").write_text(f"{mount}\n")
    (found,) = examine(system, ["disk"]).findings
    assert found.status == "warning" and f"the download directory {tmp_path / 'hub'} is on NFS 3" in found.measured
