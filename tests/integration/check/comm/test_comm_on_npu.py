"""`comm test` over HCCL: the real torch_npu on simulated CANN libraries. Nothing here is a figure of a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_node.cann.build import why_not
from ascend_node.cann.environment import simulated_environment

pytestmark = pytest.mark.simulated_npu

# The device files by which a real node is known are not simulated.
_MAIN = """
import sys
from ascendtune.machine.vendor.npu import NpuVendor
NpuVendor.device_ids = lambda self, dev: ("0", "1")
from ascendtune.cli.main import main
main(sys.argv[1:])
"""


def _run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    if reason := why_not():
        pytest.skip(reason)
    return subprocess.run(
        [sys.executable, "-c", _MAIN, "comm", *words],
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
def test_the_table_with_a_peak_that_is_not_published(tmp_path: Path) -> None:
    done = _run(tmp_path, "bench", "--max-bytes", "64", "--iterations", "2", "--expect", "peak")
    assert done.returncode == 0, done.stderr
    assert "2 ranks over hccl" in done.stdout and "every element is right at 4 sizes" in done.stdout
    assert "npu-smi does not report the topology" in done.stdout
