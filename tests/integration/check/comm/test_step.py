"""`ascendtune comm bench --profile-step` on a real training of two ranks, of which one is slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_FAULTY = Path(__file__).with_name("command.py")


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.soak)])
def test_the_rank_that_others_wait_for(strategy: str, tiny_model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {each} plus one?", "completion": f"{each + 1}"} for each in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.yaml").write_text(
        f"model: {{path: {tiny_model}}}\ndata: {{train: rows.jsonl, eval_fraction: 0.2, max_length: 64}}\n"
        f"optim: {{epochs: 1}}\nprecision: fp32\nparallel: {{strategy: {strategy}}}\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            str(_FAULTY),
            "computes slowly",
            "1",
            "comm",
            "bench",
            "--profile-step",
            "recipe.yaml",
            "--json",
        ],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout[done.stdout.index("{\n") :])
    waits, slow = told["steps"]
    # The fault is a sleep of 0.15 s before each backward pass.
    assert slow["compute_seconds"] > 0.15 > waits["compute_seconds"]
    assert waits["waiting_seconds"] > 0.1 > slow["waiting_seconds"]
    assert all(
        step["compute_seconds"] + step["communication_seconds"] + step["waiting_seconds"]
        == pytest.approx(step["apart_seconds"])
        for step in told["steps"]
    )
    assert "rank 1 computes longest" in told["findings"][0]["measured"]
    assert not list(temporary.glob("ascendtune-*")) and not (tmp_path / "runs").exists(), "nothing is saved"
