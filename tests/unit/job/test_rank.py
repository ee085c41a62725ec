"""The program that torchrun starts for each rank: its cores and its output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import os, signal, sys
print("on cores", sorted(os.sched_getaffinity(0)))
print("blocked", [each.name for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])])
print("heard", repr(sys.stdin.read()))
print("trouble", file=sys.stderr)
"""


def run(directory: Path, rank: int, *options: str, cores: str = "") -> str:
    """What the program of a rank leaves on the output that torchrun gave it."""
    environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "ASCENDTUNE_CORES": cores}
    command = [sys.executable, "-m", "ascendtune.job.rank", *options, str(directory), sys.executable, "-c", _PROGRAM]
    read, write = os.pipe()
    with os.fdopen(read) as terminal:
        # For rank 0 descriptor 0 is the user's stderr.
        ended = subprocess.run(command, env=environment, stdin=write, capture_output=True, text=True, timeout=60)
        os.close(write)
        assert ended.returncode == 0
        return ended.stdout + terminal.read()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_runs_on_its_own_cores(tmp_path: Path, rank: int) -> None:
    usable = sorted(os.sched_getaffinity(0))
    parts = [str(usable[0]), str(usable[-1])]
    said = run(tmp_path, rank, cores=";".join(parts))
    if rank:
        said = (tmp_path / "rank_1.log").read_text()
    assert f"on cores [{parts[rank]}]" in said


def test_a_rank_without_cores_of_its_own_is_left_alone(tmp_path: Path) -> None:
    assert f"on cores {sorted(os.sched_getaffinity(0))}" in run(tmp_path, 0, cores="")


def test_rank_0_writes_to_the_terminal_and_others_to_their_logs(tmp_path: Path) -> None:
    # Nothing that is typed for the launcher reaches a rank.
    said = run(tmp_path, 0)
    assert "heard ''" in said and "trouble" in said and list(tmp_path.iterdir()) == []
    assert run(tmp_path, 1) == ""
    log = (tmp_path / "rank_1.log").read_text()
    assert "heard ''" in log and "trouble" in log


def test_with_all_rank_0_writes_a_log_too(tmp_path: Path) -> None:
    assert run(tmp_path, 0, "--all") == ""
    assert "trouble" in (tmp_path / "rank_0.log").read_text()


@pytest.mark.parametrize(("options", "blocked"), [((), []), (("--hold",), ["SIGINT"])])
def test_our_training_begins_with_ctrl_c_held(tmp_path: Path, options: tuple[str, ...], blocked: list[str]) -> None:
    assert f"blocked {blocked}" in run(tmp_path, 0, *options)
