from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ascendtune.job.environment import defaults, environment, record_environment
from ascendtune.job.hang import flight_recorder
from ascendtune.job.spec import JobSpec, NodePlace

MARK = {"ASCENDTUNE_JOB": "r-1"}
SPINS = {"GOMP_SPINCOUNT": "5000"}


def _spec(**changes: Any) -> JobSpec:
    return JobSpec(**{"argv": ("x",), "run_dir": Path("r"), "nproc": 1, "kind": "cpu", "id": "r-1", **changes})


def test_one_process_on_the_cpu_keeps_all_threads() -> None:
    assert environment(_spec(), {"PATH": "/bin"}, cores=8) == {"PATH": "/bin", **MARK, **SPINS}


def test_the_mark_is_of_this_job_also_inside_another() -> None:
    assert environment(_spec(), {"ASCENDTUNE_JOB": "outer-1"}, cores=8) == MARK | SPINS


def test_threads_that_wait_spin_briefly_unless_the_user_says_how() -> None:
    assert "GOMP_SPINCOUNT" not in environment(_spec(), {"OMP_WAIT_POLICY": "active"}, cores=8)
    assert environment(_spec(), {"GOMP_SPINCOUNT": "0"}, cores=8)["GOMP_SPINCOUNT"] == "0"


def test_several_processes_share_the_cores() -> None:
    assert environment(_spec(nproc=3), {}, cores=8)["OMP_NUM_THREADS"] == "2"
    assert environment(_spec(nproc=3), {}, cores=2)["OMP_NUM_THREADS"] == "1"


def test_user_environment_overrides_defaults() -> None:
    user = {
        "OMP_NUM_THREADS": "7",
        "HCCL_CONNECT_TIMEOUT": "1800",
        "TASK_QUEUE_ENABLE": "0",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    found = environment(_spec(nproc=2, kind="npu"), user, cores=8)
    assert found | user == found
    assert "OMP_NUM_THREADS" not in defaults(_spec(nproc=2, kind="npu"), user, cores=8)


@pytest.mark.parametrize("kind", ["npu", "cuda"])
def test_the_allocator_is_set_by_one_variable_only(kind: str) -> None:
    variable = f"PYTORCH_{kind.upper()}_ALLOC_CONF"
    assert environment(_spec(kind=kind), {}, cores=8)[variable] == "expandable_segments:True"
    given = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:256"}
    assert variable not in environment(_spec(kind=kind), given, cores=8)


def test_every_library_takes_the_interface_that_leads_to_the_master() -> None:
    place = NodePlace(2, 1, "node0", 29500, "192.168.1.7", "eth1")
    found = defaults(_spec(kind="npu"), {"TP_SOCKET_IFNAME": "bond0"}, cores=8, place=place)
    assert {name: value for name, value in found.items() if name.endswith(("IFNAME", "IF_IP"))} == {
        "GLOO_SOCKET_IFNAME": "eth1",
        "HCCL_SOCKET_IFNAME": "=eth1",
        "HCCL_IF_IP": "192.168.1.7",
    }
    assert defaults(_spec(kind="cuda"), {}, cores=8, place=place)["NCCL_SOCKET_IFNAME"] == "=eth1"


def test_ascend_defaults_are_for_ascend_only() -> None:
    assert environment(_spec(kind="npu"), {}, cores=8)["TASK_QUEUE_ENABLE"] == "2"
    assert "TASK_QUEUE_ENABLE" not in environment(_spec(kind="cuda"), {}, cores=8)


def test_nccl_keeps_a_flight_recorder_where_there_are_several_ranks(tmp_path: Path) -> None:
    chosen = environment(_spec(kind="cuda", nproc=2, run_dir=tmp_path), {}, cores=8)
    assert chosen["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == f"{tmp_path}/log/flight_recorder_rank_"
    pipe = chosen["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
    assert not pipe.startswith(str(tmp_path)), "a shared file system may not hold a pipe"
    os.mkfifo(f"{pipe}0.pipe")
    flight_recorder.remove_stale_pipes(tmp_path)
    assert not Path(f"{pipe}0.pipe").exists()
    for other in (_spec(kind="npu", nproc=2), _spec(kind="cpu", nproc=2), _spec(kind="cuda")):
        assert not any("DEBUG_INFO" in name for name in environment(other, {}, cores=8))


@pytest.mark.parametrize("kind", ["link", "file", "open to others"])
def test_pipes_are_made_in_a_directory_of_this_user_only(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another user was first, torch could not make its pipe, and would end the worker."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / f"ascendtune-{os.getuid()}"
    if kind == "link":
        taken.symlink_to(tmp_path)
    elif kind == "file":
        taken.touch()
    else:
        taken.mkdir()
        taken.chmod(0o777)
    chosen = environment(_spec(kind="cuda", nproc=2, run_dir=tmp_path), {}, cores=8)
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in chosen
    flight_recorder.remove_stale_pipes(tmp_path)


def test_chosen_devices_limit_what_the_children_see() -> None:
    user = {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3"}
    assert environment(_spec(kind="npu", device_ids=("1", "3")), user, cores=8)["ASCEND_RT_VISIBLE_DEVICES"] == "1,3"
    assert environment(_spec(kind="cuda", device_ids=("1",)), {}, cores=8)["CUDA_VISIBLE_DEVICES"] == "1"


def test_gpus_that_were_chosen_by_number_are_counted_as_nvidia_smi_counts() -> None:
    spec = _spec(kind="cuda", device_ids=("1",))
    assert environment(spec, {}, cores=8)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    for user in ({"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):
        assert environment(spec, user, cores=8).get("CUDA_DEVICE_ORDER") == user.get("CUDA_DEVICE_ORDER")
    for other in (_spec(kind="cuda"), _spec(kind="npu", device_ids=("1",))):
        assert "CUDA_DEVICE_ORDER" not in environment(other, {}, cores=8)


def test_a_rank_of_another_job_is_not_inherited() -> None:
    assert environment(_spec(), {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}, cores=8) == MARK | SPINS


def test_job_variables_override_user_environment() -> None:
    spec = _spec(variables={"TORCH_TRANSFER_TO_NPU": "1"})
    assert environment(spec, {"TORCH_TRANSFER_TO_NPU": "0", "A": "b"}, cores=8) == {
        "TORCH_TRANSFER_TO_NPU": "1",
        "A": "b",
        **MARK,
        **SPINS,
    }


def test_recorded_environment_has_added_variables_only(tmp_path: Path) -> None:
    spec, user = _spec(run_dir=tmp_path, nproc=2, kind="npu"), {"HF_TOKEN": "secret", "TASK_QUEUE_ENABLE": "0"}
    record_environment(spec, environment(spec, user, cores=8), user)
    noted = json.loads((tmp_path / "log" / "environment_0.json").read_text())
    assert noted.keys().isdisjoint(user)
    assert noted["OMP_NUM_THREADS"] == "4" and noted["HCCL_CONNECT_TIMEOUT"] == "600"
