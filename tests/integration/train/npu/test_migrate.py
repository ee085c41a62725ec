"""An unmodified CUDA script on the simulated Ascend node: torch_npu replaces its calls, however it is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ascend_node.cann.environment import simulated_environment
from ascend_node.cann.node import Node

_SCRIPT = """
import os, subprocess, sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
x = torch.ones(2, device="cuda") * (rank + 1)
dist.all_reduce(x)
assert x.is_cuda and torch.nn.Linear(2, 2).cuda()(x).shape == (2,)
if rank == 0:
    other = "import torch; print(torch.ones(1).cuda().device.type)"
    said = subprocess.check_output([sys.executable, "-c", other], text=True)
    assert said.split()[-1] == "npu", said
    print(sys.argv[1:], x.device, x.tolist(), dist.get_backend())
dist.destroy_process_group()
"""
# The device files by which a real node is known are not simulated.
_MAIN = """
import sys
from ascendtune.machine.vendor.npu import NpuVendor
NpuVendor.device_ids = lambda self, dev: ("0", "1")
from ascendtune.cli.main import main
main(sys.argv[1:])
"""


def test_cuda_script_runs_on_two_npus(node: Node, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    ended = subprocess.run(
        [sys.executable, "-c", _MAIN, "migrate", "run", "--devices", "2", "train.py", "--lr", "1"],
        cwd=tmp_path,
        env=simulated_environment(dict(os.environ)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip().endswith("['--lr', '1'] npu:0 [3.0, 3.0] hccl")
    assert (tmp_path / "migrate" / "log" / "rank_1.log").is_file()
