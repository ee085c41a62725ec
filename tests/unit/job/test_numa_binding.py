from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ascendtune.job.numa_binding import numa_binding
from ascendtune.job.rank import CORES, bind
from ascendtune.job.spec import JobSpec


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for node, cores in enumerate(("0-3", "4-7")):
        directory = tmp_path / f"sys/devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{cores}\n")
    (tmp_path / "dev").mkdir()
    for number in range(8):
        (tmp_path / f"dev/davinci{number}").touch()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)) - {5})
    return tmp_path


def _near(ids: Sequence[str]) -> list[set[int]]:
    return [{4, 5, 6, 7} if int(each) % 2 else {0, 1, 2, 3} for each in ids]


def _spec(**changes: Any) -> JobSpec:
    return JobSpec(**{"argv": ("x",), "run_dir": Path("r"), "nproc": 2, "kind": "npu", **changes})


def test_each_rank_gets_the_allowed_cores_near_its_device(two_nodes: Path) -> None:
    assert numa_binding(_spec(), {}, near=_near, root=two_nodes) == {CORES: "0-3;4,6-7"}
    assert numa_binding(_spec(device_ids=("1", "3")), {}, near=_near, root=two_nodes) == {CORES: "4,6-7;4,6-7"}
    visible = {"ASCEND_RT_VISIBLE_DEVICES": "3,4"}
    assert numa_binding(_spec(), visible, near=_near, root=two_nodes) == {CORES: "4,6-7;0-3"}


@pytest.mark.parametrize(("value", "ids"), [("3, 4,5", ["3"]), ("0,9,1", ["0"]), ("5,2", ["5"]), ("2,4,6", ["2", "4"])])
def test_cores_are_those_near_the_devices_that_the_runtime_shows(two_nodes: Path, value: str, ids: list[str]) -> None:
    asked: list[list[str]] = []

    def near(names: Sequence[str]) -> list[set[int]]:
        asked.append(list(names))
        return _near(names)

    numa_binding(_spec(), {"ASCEND_RT_VISIBLE_DEVICES": value}, near=near, root=two_nodes)
    assert asked == [ids]


def test_nothing_is_bound_on_cpu_one_numa_node_or_with_user_binding(two_nodes: Path, tmp_path: Path) -> None:
    assert numa_binding(_spec(kind="cpu"), {}, near=_near, root=two_nodes) == {}
    assert numa_binding(_spec(), {"CPU_AFFINITY_CONF": "1"}, near=_near, root=two_nodes) == {}
    assert numa_binding(_spec(), {}, near=_near, root=tmp_path / "one-node") == {}
    assert numa_binding(_spec(), {}, near=lambda ids: [set() for _ in ids], root=two_nodes) == {}


def test_a_rank_and_its_children_are_bound() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; from ascendtune.job.rank import bind; bind(1, ';{core}'); print(sorted(os.sched_getaffinity(0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"[{core}]"


def test_a_rank_without_a_part_is_left_alone() -> None:
    before = os.sched_getaffinity(0)
    bind(0, "")
    bind(3, "0;0")
    bind(0, ";0")
    assert os.sched_getaffinity(0) == before
