"""The doctor over the real torch_npu wheel, on simulated CANN libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_node.cann.build import PACKAGES, why_not
from ascend_node.cann.environment import simulated_environment
from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.system import System, package_directory
from ascendtune.check.finding import Finding

pytestmark = pytest.mark.simulated_npu


def _probe(index: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ascendtune.check.doctor.probe", "compute", "npu", str(index)],
        # An eighth of the memory is written.
        env=simulated_environment(dict(os.environ), memory_mb=1024),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(autouse=True)
def _node_is_there() -> None:
    if reason := why_not():
        pytest.skip(reason)


def test_an_npu_computes_like_the_cpu() -> None:
    result = _probe(1)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["name"] == "Ascend910B2" and set(told["errors"]) == {"fp32", "bf16", "fp16"}
    assert told["errors"]["fp32"] < 1e-5 and told["errors"]["bf16"] < 5e-3
    assert told["to_device_bytes_per_second"] > 0
    assert told["allocated_bytes"] == told["memory_total_bytes"] // 8 == 128 << 20


def _libraries(env: dict[str, str]) -> Finding:
    def where(module: str) -> Path | None:
        return Path(PACKAGES) / module if module == "torch_npu" else package_directory(module)

    system = System(env=env, package=lambda name: "2.13.0", package_directory=where)
    (found,) = examine(system, ["libraries"]).findings
    return found


def test_libraries_of_the_wheel_resolve_only_where_cann_is_loaded() -> None:
    env = simulated_environment(dict(os.environ))
    assert _libraries(env).status == "ok"
    del env["LD_LIBRARY_PATH"]
    found = _libraries(env)
    assert found.status == "failure" and "libhccl.so" in found.measured and "libtorch" not in found.measured


def _two_npus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    for index in range(2):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / f"dev/davinci{index}").touch()
    monkeypatch.syspath_prepend(PACKAGES)  # whether torch_npu is there is asked of this process
    env = simulated_environment(dict(os.environ))
    return System(root=tmp_path, env=env, package=lambda name: "2.13.0", program=sys.executable)


def test_two_ranks_add_up_by_hccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = examine(_two_npus(tmp_path, monkeypatch), ["all_reduce"]).findings
    assert found.status == "ok" and "hccl sums over 2 ranks on NPU 0 and NPU 1" in found.measured, found


def test_a_script_for_cuda_runs_on_the_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = examine(_two_npus(tmp_path, monkeypatch), ["transfer_to_npu"]).findings
    assert found.status == "ok" and "calls of torch.cuda reach NPU 0" in found.measured, found
