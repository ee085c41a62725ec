"""`ascendtune comm bench --profile-step` on a real training of two ranks, of which one is slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("preloaded")

Bench = Callable[..., subprocess.CompletedProcess[str]]

_FAULTY = Path(__file__).with_name("command.py")


@pytest.fixture
def bench(tiny_model: Path, tmp_path: Path) -> Bench:
    """The command, where `fault` happens on rank 1."""
    rows = [{"prompt": f"What is {each} plus one?", "completion": f"{each + 1}"} for each in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.yaml").write_text(
        f"model: {{path: {tiny_model}}}\ndata: {{train: rows.jsonl, eval_fraction: 0.2, max_length: 64}}\n"
        f"optim: {{epochs: 1}}\nprecision: fp32\n"
    )
    (tmp_path / "temporary").mkdir()

    def start(fault: str, strategy: str, *words: str) -> subprocess.CompletedProcess[str]:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(f"{recipe.read_text()}parallel: {{strategy: {strategy}}}\n")
        command = ["comm", "bench", "--profile-step", "recipe.yaml", "--json", *words]
        return subprocess.run(
            [sys.executable, str(_FAULTY), fault, "1", *command],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
            capture_output=True,
            text=True,
            timeout=180,
        )

    return start


def _told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{\n") :])
    return told


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.soak)])
def test_the_rank_that_others_wait_for(strategy: str, bench: Bench, tmp_path: Path) -> None:
    done = bench("computes slowly", strategy)
    assert done.returncode == 0, done.stderr
    told = _told(done)
    waits, slow = told["steps"]
    # The fault is a sleep of 0.15 s before each backward pass.
    assert slow["compute_seconds"] > 0.15 > waits["compute_seconds"]
    assert waits["waiting_seconds"] > 0.1 > slow["waiting_seconds"]
    assert all(
        step["compute_seconds"] + step["communication_seconds"] + step["waiting_seconds"]
        == pytest.approx(step["apart_seconds"])
        for step in told["steps"]
    )
    assert "rank 1 computes the longest" in told["findings"][0]["measured"]
    assert not list((tmp_path / "temporary").glob("ascendtune-step-*")), "nothing is saved"
    assert not (tmp_path / "runs").exists()


def test_the_rank_that_others_wait_for_in_vain(bench: Bench) -> None:
    done = bench("computes no more", "ddp", "--timeout", "6")
    assert done.returncode == 1, done.stderr
    said = {each["code"]: each["measured"] for each in _told(done)["findings"]}
    assert said["ranks"] == "rank 1 did not return from step 9: rank 0 waited 6 s"
    assert "error" not in done.stderr, "training must not take it for a fault of its own"
