"""Any process of a job is killed at any moment: nothing is left of the job, and the same command goes on exactly."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ascendtune.core.rundir import RunDir

_STEPS = 40


@dataclass(frozen=True)
class Workplace:
    """A directory with a recipe; `words` say where its two processes run."""

    path: Path
    words: tuple[str, ...]
    search_path: str
    """PATH: where ssh is found."""

    def start(self, name: str) -> subprocess.Popen[str]:
        own = {
            "XDG_CACHE_HOME": str(self.path / "cache"),
            "XDG_STATE_HOME": str(self.path / "state"),
            "OMP_NUM_THREADS": "1",
            "PATH": self.search_path,
        }
        argv = [sys.executable, "-m", "ascendtune", "train", "recipe.yaml", f"name={name}", *self.words]
        err = (self.path / f"{name}.err").open("a")
        return subprocess.Popen(argv, cwd=self.path, text=True, env={**os.environ, **own}, stdout=err, stderr=err)

    def run(self, name: str) -> RunDir:
        return RunDir(self.path / "runs" / name)

    def exact(self, name: str) -> list[tuple[Any, ...]]:
        keys = ("step", "loss", "grad_norm", "learning_rate", "batch_hash", "tokens_seen")
        return [tuple(line[key] for key in keys) for line in self.run(name).read_metrics()]


def _furnish(path: Path, tiny_model: Path, words: tuple[str, ...], search_path: str) -> Workplace:
    draw = random.Random(11)
    rows = [
        {"prompt": f"What is {number} plus one?", "completion": " ".join(draw.choices(["a", "b", "c"], k=6))}
        for number in range(60)
    ]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "recipe.yaml").write_text(
        f"model: {{path: {tiny_model}}}\ndata: {{train: rows.jsonl, max_length: 64}}\n"
        f"optim: {{max_steps: {_STEPS}, learning_rate: 1e-3}}\nprecision: fp32\nbatch: {{per_device: 1}}\n"
        "method: {tuner: lora, lora: {rank: 4, dropout: 0.2}}\n"
        "checkpoint: {every_steps: 3}\ntrack: {tensorboard: false}\n"
    )
    workplace = Workplace(path, words, search_path)
    assert workplace.start("unbroken").wait(180) == 0, (path / "unbroken.err").read_text()
    return workplace


def _family(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """The command and everything below it, whose parents still live."""
    try:
        command = psutil.Process(job.pid)
        return [command, *command.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill_and_go_on(workplace: Workplace, seeds: range, others: Callable[[], list[int]] = list) -> None:
    """One run, broken once for each seed, then finished: it is the unbroken one.

    Args:
        others: pids of the job that are not below the command, on other hosts.
    """
    run, killed = workplace.run("broken"), 0
    for seed in seeds:
        draw, began = random.Random(seed), time.time()
        job = workplace.start("broken")
        _wait_for_a_step(job, run, began)
        time.sleep(draw.uniform(0, 0.5))
        family = _family(job)
        alive = [each.pid for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        if job.poll() is not None or not alive:
            break
        doomed = draw.choice(alive + others())
        os.kill(doomed, signal.SIGKILL)
        killed += 1
        assert job.wait(90) != 0 or run.read()["state"] == "finished", f"seed {seed}: nobody noticed"
        _, left = psutil.wait_procs(family, timeout=10)
        assert not left, f"seed {seed}: {left} are left"
        deadline = time.monotonic() + 10
        while others():
            assert time.monotonic() < deadline, f"seed {seed}: {others()} are left on another host"
            time.sleep(0.1)
        if run.read()["state"] == "finished":
            break
    assert killed
    if run.read()["state"] != "finished":
        assert workplace.start("broken").wait(180) == 0, (workplace.path / "broken.err").read_text()
    assert workplace.exact("broken") == workplace.exact("unbroken")


def _wait_for_a_step(job: subprocess.Popen[str], run: RunDir, began: float) -> None:
    """Until the attempt of `job` has recorded a step, and has a checkpoint: without one a start takes a new name."""
    deadline = time.monotonic() + 90
    while job.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        attempts = run.read()["attempts"] if run.run_json.exists() else []
        is_ours = attempts and attempts[-1]["started"] > began and run.checkpoint_steps()
        if is_ours and any(line["attempt"] == len(attempts) for line in run.read_metrics()):
            return


def test_five_kills_on_this_machine(tmp_path: Path, tiny_model: Path) -> None:
    _kill_and_go_on(_furnish(tmp_path, tiny_model, ("--devices", "2"), os.environ["PATH"]), range(5))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 140, 5))
def test_forty_kills_on_this_machine(tmp_path: Path, tiny_model: Path, first: int) -> None:
    workplace = _furnish(tmp_path, tiny_model, ("--devices", "2"), os.environ["PATH"])
    _kill_and_go_on(workplace, range(first, first + 5))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(200, 210, 5))
def test_ten_kills_on_two_hosts(tmp_path: Path, tiny_model: Path, cluster: Any, first: int) -> None:
    path = cluster.environment()["PATH"]
    workplace = _furnish(tmp_path, tiny_model, ("--nodes", "nodea,nodeb"), path)
    _kill_and_go_on(workplace, range(first, first + 5), cluster.everything)
