"""A training in the background, on one device: from the terminal to its end, and what the commands say of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascendtune.core import procfs
from ascendtune.core.rundir import RunDir

pytestmark = pytest.mark.usefixtures("preloaded")


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"What is {number} plus one?", "completion": f"{number + 1}."} for number in range(20)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("recipe.yaml").write_text(
        f"name: notes\nmodel: {{path: {tiny_model}}}\ndata: {{train: rows.jsonl, max_length: 64}}\n"
        "optim: {max_steps: 3}\nprecision: fp32\n"
    )


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ascendtune", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)


def test_training_continues_in_the_background_once_all_is_ready() -> None:
    started = _run("train", "recipe.yaml", "--detach")
    assert started.returncode == 0, started.stderr
    assert "20 rows read" in started.stderr, "the data was prepared in front"
    job_id = started.stdout.split()[0]
    assert job_id.startswith("notes-") and "follow: ascendtune jobs logs -f " + job_id in started.stdout
    (listed,) = json.loads(_run("jobs", "list", "--json").stdout)
    assert (listed["id"], listed["state"], listed["nproc"]) == (job_id, "running", 1)
    assert os.getsid(listed["pid"]) == listed["pid"]
    assert procfs.environment_of(listed["pid"]).get("ASCENDTUNE_JOB") == job_id, "this process is the worker"
    followed = _run("jobs", "logs", "-f", "notes")
    assert followed.returncode == 0 and "step 3/3" in followed.stdout and "Traceback" not in followed.stdout
    assert RunDir("runs/notes").read()["state"] == "finished"
    shown = json.loads(_run("jobs", "show", job_id, "--json").stdout)
    assert (shown["state"], shown["exit_code"], shown["step"], shown["processes"]) == ("finished", 0, 3, [])
    assert _run("jobs", "list").stdout == "no job runs; --all lists 1 that did\n"


def test_a_wrong_recipe_is_reported_in_the_foreground() -> None:
    refused = _run("train", "recipe.yaml", "--detach", "data.train=nothing.jsonl")
    assert refused.returncode == 2 and "nothing.jsonl" in refused.stderr
    assert _run("jobs", "list", "--all").stdout == "no job runs\n"


def test_a_failure_before_the_start_is_reported_in_the_foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "nonsense")
    refused = _run("launch", "--detach", "--devices", "2", "--", "true")
    assert refused.returncode == 2 and "MASTER_PORT=nonsense is not a port" in refused.stderr
    assert "Traceback" not in refused.stderr
