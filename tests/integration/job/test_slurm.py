"""`ascendtune submit --to slurm` with Debian's Slurm: the job runs, stops with a checkpoint, and continues."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import slurm_cluster
import submissions
from ascendtune.core.rundir import RunDir
from ascendtune.job.backend import slurm
from ascendtune.machine.visible import Kind
from slurm_cluster import SlurmCluster, wait_for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running
    assert not [each for each in psutil.process_iter() if _belongs_to(running, each)]


def _belongs_to(cluster: SlurmCluster, process: psutil.Process) -> bool:
    try:
        return process.environ().get("SLURM_CONF") == cluster.env["SLURM_CONF"]
    except psutil.Error:
        return False


@pytest.fixture
def workshop(tmp_path: Path, tiny_model: Path, cluster: SlurmCluster) -> Workshop:
    return Workshop(tmp_path, tiny_model, cluster)


class Workshop:
    """A directory with a recipe that is submitted from there."""

    def __init__(self, directory: Path, model: Path, cluster: SlurmCluster) -> None:
        self.directory = directory
        self._cluster = cluster
        self.run = RunDir(directory / "runs" / "slurm")
        self._env = {**cluster.env, "XDG_CACHE_HOME": str(directory / "cache"), "XDG_STATE_HOME": str(directory)}
        rows = [{"prompt": f"Count to {n}", "completion": " ".join(map(str, range(n)))} for n in range(1, 65)]
        (directory / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (directory / "recipe.yaml").write_text(
            f"name: slurm\nmodel: {{path: {model}}}\ndata: {{train: rows.jsonl, max_length: 64}}\nprecision: fp32\n"
        )

    def submit(self, *words: str) -> str:
        """The job's number."""
        engine = ["--to", "slurm", "--accelerator", "cpu", "--apply", "--yes"]
        done = self.ascendtune("submit", "recipe.yaml", *words, *engine)
        assert done.returncode == 0, done.stderr
        number = re.search(r"Submitted batch job (\d+)", done.stdout)
        assert number, done.stdout
        return number[1]

    def ascendtune(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "ascendtune", *words]
        return subprocess.run(argv, cwd=self.directory, env=self._env, capture_output=True, text=True, timeout=60)

    def said(self, job: str) -> str:
        log = self.directory / f"ascendtune-slurm-{job}.log"
        return log.read_text() if log.exists() else "nothing"

    def until_step(self, step: int, job: str) -> None:
        def reached() -> bool:
            assert self._cluster.state(job) not in ("FAILED", "CANCELLED", "COMPLETED", "NODE_FAIL"), self.said(job)
            return self.run.metrics.exists() and any(line["step"] >= step for line in self.run.read_metrics())

        wait_for(reached, f"step {step}", seconds=120)

    def states(self) -> list[Any]:
        return [attempt["state"] for attempt in self.run.read()["attempts"]]


def test_a_job_on_two_devices_runs_to_its_end(workshop: Workshop, cluster: SlurmCluster) -> None:
    job = workshop.submit("optim.max_steps=3", "--devices", "2")
    assert cluster.wait_for_state(job, "COMPLETED", "FAILED") == "COMPLETED", workshop.said(job)
    record = workshop.run.read()
    assert record["state"] == "finished"
    assert [line["step"] for line in workshop.run.read_metrics()] == [1, 2, 3]


def test_two_nodes_train_one_model(workshop: Workshop, cluster: SlurmCluster) -> None:
    job = workshop.submit("optim.max_steps=3", "--nodes", "2")
    assert cluster.wait_for_state(job, "COMPLETED", "FAILED") == "COMPLETED", workshop.said(job)
    record = workshop.run.read()
    assert record["state"] == "finished"
    assert record["attempts"][0]["world_size"] == 2
    assert [line["step"] for line in workshop.run.read_metrics()] == [1, 2, 3]


def test_a_cancelled_job_leaves_a_checkpoint_and_one_on_fewer_nodes_continues(
    workshop: Workshop, cluster: SlurmCluster
) -> None:
    long = ("optim.max_steps=100000", "checkpoint.every_steps=100000")
    job = workshop.submit(*long, "--hours", "1", "--nodes", "2")
    workshop.until_step(3, job)
    cluster.ask("scancel", job)
    cluster.wait_for_state(job, "CANCELLED")
    wait_for(lambda: workshop.run.read()["state"] == "stopped", "the run being stopped")
    assert "Restarts=0" in cluster.ask("scontrol", "show", "job", job)
    stopped_at = max(workshop.run.checkpoint_steps())

    job = workshop.submit(*long)
    workshop.until_step(stopped_at + 2, job)
    cluster.ask("scancel", "--signal=TERM", job)
    assert cluster.wait_for_state(job, "FAILED", "CANCELLED", "COMPLETED") == "FAILED"
    assert f"resuming runs/slurm from step {stopped_at}" in workshop.said(job)
    steps = [line["step"] for line in workshop.run.read_metrics()]
    assert steps == list(range(1, len(steps) + 1))
    assert max(workshop.run.checkpoint_steps()) == steps[-1]


def test_near_the_time_limit_a_job_queues_again_and_continues(workshop: Workshop, cluster: SlurmCluster) -> None:
    # A real limit is minutes away; this is the signal that Slurm sends before it.
    job = workshop.submit("optim.max_steps=100000", "checkpoint.every_steps=100000", "--hours", "1")
    workshop.until_step(3, job)
    cluster.ask("scancel", "--signal=USR1", "--batch", job)
    wait_for(lambda: "Restarts=1" in cluster.ask("scontrol", "show", "job", job), "the job queueing again")
    stopped_at = max(workshop.run.checkpoint_steps())
    workshop.until_step(stopped_at + 2, job)
    cluster.ask("scancel", "--signal=TERM", job)
    cluster.wait_for_state(job, "FAILED")
    assert f"resuming runs/slurm from step {stopped_at}" in workshop.said(job)
    assert "Restarts=1" in cluster.ask("scontrol", "show", "job", job)


@pytest.mark.parametrize("kind", submissions.KINDS)
def test_sbatch_would_run_it(kind: Kind, tmp_path: Path, cluster: SlurmCluster) -> None:
    limited = replace(submissions.with_a_limit(submissions.submission(kind, 1)), sbatch=())
    script = tmp_path / "job.sbatch"
    script.write_text(slurm.write(limited))
    words = ["sbatch", "--test-only", str(script)]
    done = subprocess.run(words, env=cluster.env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


def test_more_devices_than_a_node_has_are_refused(workshop: Workshop) -> None:
    words = ["--to", "slurm", "--accelerator", "npu", "--devices", "9", "--apply", "--yes"]
    done = workshop.ascendtune("submit", "recipe.yaml", *words)
    assert done.returncode == 3
    assert "9 NPU on one node requested, at most 8 available" in done.stderr
    assert "use --devices 8" in done.stderr
