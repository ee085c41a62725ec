"""The program behind `doctor --deep` with the real torch_npu, on simulated CANN libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ascend_node.cann.build import why_not
from ascend_node.cann.environment import simulated_environment

pytestmark = pytest.mark.simulated_npu


def _probe(index: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ascendtune.check.doctor.probe", "npu", str(index)],
        env=simulated_environment(dict(os.environ)),
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
