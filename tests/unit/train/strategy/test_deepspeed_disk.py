"""The places of ZeRO's files on a disk, and their removal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ascendtune.core.errors import MachineError
from ascendtune.train.strategy.deepspeed_disk import fit_buffers, swap_directories


def on_disk(path: Path, **offload_param: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": path, **offload_param}}}


def place(config: dict[str, Any]) -> Path:
    return Path(config["zero_optimization"]["offload_param"]["nvme_path"])


def test_two_processes_share_no_file_and_leave_none(tmp_path: Path) -> None:
    one, other = on_disk(tmp_path), on_disk(tmp_path)
    with swap_directories(one), swap_directories(other):
        assert place(one) != place(other)
        assert place(one).is_dir() and place(other).is_dir()
        assert place(one).parent == place(other).parent == tmp_path
    assert not list(tmp_path.glob("*swap*"))


@pytest.mark.long
def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom ascendtune.train.strategy.deepspeed_disk import swap_directories\n"
        "section = {'device': 'nvme', 'nvme_path': sys.argv[1]}\n"
        "with swap_directories({'zero_optimization': {'offload_optimizer': section}}):\n"
        "    open(section['nvme_path'] + '/left', 'w').close()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path], timeout=60).returncode == -9
    (left,) = tmp_path.glob("*/left")
    with swap_directories(on_disk(tmp_path)):
        assert not left.parent.exists()


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(MachineError, match="nvme_path is not a directory on this host"),
        swap_directories(on_disk(tmp_path / "no")),
    ):
        pass


def test_state_in_memory_needs_no_directory() -> None:
    with swap_directories({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}):
        pass


def test_buffers_hold_the_largest_share(tmp_path: Path) -> None:
    objective = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7))
    config = on_disk(tmp_path)
    fit_buffers(config, objective, ranks=2)
    assert config["zero_optimization"]["offload_param"]["buffer_size"] == 18  # of 35, rounded up
    asked = on_disk(tmp_path, buffer_size=99)
    fit_buffers(asked, objective, ranks=2)
    assert asked["zero_optimization"]["offload_param"]["buffer_size"] == 99
