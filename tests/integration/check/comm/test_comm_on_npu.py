"""`comm test` over HCCL: the real torch_npu on simulated CANN libraries. Nothing here is a figure of a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_node.cann.environment import simulated_environment

pytestmark = [pytest.mark.simulated_npu, pytest.mark.usefixtures("preloaded_on_npu")]


def _run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("main_on_npu.py")), "comm", *words],
        cwd=directory,
        env=simulated_environment(dict(os.environ)),
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_two_npus_agree_in_everything_that_hccl_takes(tmp_path: Path) -> None:
    done = _run(tmp_path, "test", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert told["kind"] == "npu" and told["verdict"].startswith("2 ranks over hccl: 7 of 7")
    sums = {each["dtype"]: each["ranks"][0] for each in told["results"] if each["collective"] == "all_reduce"}
    right = {dtype for dtype, cell in sums.items() if "parts" in cell}
    assert {"float32", "float16", "bfloat16", "int64", "int32", "int8"} <= right
    assert "Unsupported data type" in sums["float64"]["refused"]
    assert sums["float8_e4m3fn"] == {"rank": 0, "untried": "the chip does not support 8-bit floats"}


@pytest.mark.soak
def test_the_table_and_a_peak_that_nobody_tells(tmp_path: Path) -> None:
    done = _run(tmp_path, "bench", "--max-bytes", "64", "--iterations", "2", "--expect", "peak")
    assert done.returncode == 0, done.stderr
    assert "2 ranks over hccl" in done.stdout and "every element is right at 4 sizes" in done.stdout
    assert "npu-smi does not report the topology" in done.stdout
