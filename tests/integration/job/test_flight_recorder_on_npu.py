"""HCCL's flight recorder, asked from outside: the real torch_npu on simulated CANN libraries."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_node.cann.build import why_not
from ascend_node.cann.environment import simulated_environment
from ascendtune.job.hang import flight_recorder

pytestmark = pytest.mark.simulated_npu

_RANK = """
import time, torch, torch_npu
import torch.distributed as dist
torch.npu.set_device(0)
dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(4, device="npu"))
torch.npu.synchronize()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_rank_writes_down_its_collectives(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    switched_on = {
        "TORCH_HCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_HCCL_ENABLE_MONITORING": "1",
        "TORCH_HCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_HCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_",
        "TORCH_HCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/trace_",
    }
    env = simulated_environment({**os.environ, **switched_on})
    (tmp_path / "to").mkdir()
    with subprocess.Popen([sys.executable, "-c", _RANK], env=env, stdout=subprocess.PIPE, text=True) as rank:
        try:
            assert rank.stdout
            assert "ready\n" in iter(rank.stdout.readline, "")
            recording = flight_recorder.request_dump(rank.pid, 0)
            assert recording is not None
            flight_recorder.collect_dumps([recording], tmp_path / "to")
        finally:
            rank.kill()
    recorded = pickle.loads((tmp_path / "to" / "trace_0").read_bytes())
    assert [entry["input_sizes"] for entry in recorded["entries"]] == [[[4]]]
    assert (tmp_path / "to" / "trace_0_py_traceback").exists()
