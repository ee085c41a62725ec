"""The same training on one machine with two processes, on two nodes started by hand, and on two hosts over ssh."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir

_STEPS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A directory with a recipe, its rows, and a run `reference` on two processes here."""
    place = tmp_path_factory.mktemp("nodes")
    draw = random.Random(7)
    rows = [
        {"prompt": f"What is {number} plus one?", "completion": " ".join(draw.choices(["a", "b", "c"], k=6))}
        for number in range(40)
    ]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "recipe.yaml").write_text(
        f"model: {{path: {tiny_model}}}\ndata: {{train: rows.jsonl, max_length: 64}}\n"
        f"optim: {{max_steps: {_STEPS}, learning_rate: 1e-3}}\nprecision: fp32\nbatch: {{per_device: 2}}\n"
        "checkpoint: {every_steps: 2}\ntrack: {tensorboard: false}\n"
    )
    done = _start(place, "reference", "--devices", "2")
    assert done.wait(120) == 0
    return place


def _start(place: Path, name: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "ascendtune", "train", "recipe.yaml", f"name={name}", *words]
    own = {"XDG_CACHE_HOME": str(place / "cache"), "XDG_STATE_HOME": str(place / "state"), "OMP_NUM_THREADS": "1"}
    err = (place / f"{name}-{environment.get('NODE_RANK', 'x')}.err").open("w")
    return subprocess.Popen(argv, cwd=place, text=True, env={**os.environ, **own, **environment}, stderr=err)


def _said(place: Path, name: str, node: str = "x") -> str:
    return (place / f"{name}-{node}.err").read_text()


def _losses(place: Path, name: str) -> list[tuple[int, float, float]]:
    return [(line["step"], line["loss"], line["grad_norm"]) for line in RunDir(place / "runs" / name).read_metrics()]


def test_two_nodes_started_by_hand_are_one_job(place: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    usual = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    nodes = [_start(place, "by-hand", "--devices", "1", **usual, NODE_RANK=str(rank)) for rank in (1, 0)]
    assert [node.wait(120) for node in nodes] == [0, 0], _said(place, "by-hand", "1") + _said(place, "by-hand", "0")
    assert _losses(place, "by-hand") == _losses(place, "reference")
    assert not list((place / "runs").glob(".nodes*"))


def test_two_hosts_are_one_job_and_one_loss(place: Path, cluster: Any) -> None:
    job = _start(place, "hosts", "--nodes", "nodea,nodeb", PATH=cluster.environment()["PATH"])
    assert job.wait(120) == 0, _said(place, "hosts")
    assert _losses(place, "hosts") == _losses(place, "reference")
    assert RunDir(place / "runs/hosts").read()["attempts"][0]["world_size"] == 2
    assert cluster.is_quiet()


def test_a_host_that_does_not_answer_is_named_before_anything_is_prepared(place: Path, cluster: Any) -> None:
    job = _start(place, "absent", "--nodes", "nodea,nodec", PATH=cluster.environment()["PATH"])
    assert job.wait(60) == 3
    said = _said(place, "absent")
    assert said.startswith("error: the connection to nodec has ended: ssh: connect to host") and "data:" not in said
    assert not (place / "runs/absent").exists()


def test_a_slow_cable_is_no_dead_host(place: Path, cluster: Any) -> None:
    cluster.slow_down("nodeb", megabits=4)
    try:
        job = _start(place, "slow", "--nodes", "nodea,nodeb", PATH=cluster.environment()["PATH"])
        assert job.wait(150) == 0, _said(place, "slow")
    finally:
        cluster.slow_down("nodeb", megabits=None)
    assert _losses(place, "slow") == _losses(place, "reference")


def test_a_run_whose_host_dies_goes_on_from_its_checkpoint(
    place: Path, cluster: Any, wait_until: Callable[..., None]
) -> None:
    words = ("--nodes", "nodea,nodeb", "--max-restarts", "1", "optim.max_steps=60")
    job = _start(place, "died", *words, PATH=cluster.environment()["PATH"])
    run = RunDir(place / "runs/died")
    wait_until(lambda: run.run_json.is_file() and run.checkpoint_steps(), 60)
    # torchrun has the worker's words among its own.
    agent, worker = sorted(cluster.named("nodeb", "ascendtune.train.worker"))[:2]
    assert agent in cluster.named("nodeb", "torch.distributed.run")
    os.kill(worker, signal.SIGKILL)
    assert job.wait(120) == 0, _said(place, "died")
    assert "rank 1 on nodeb was killed (SIGKILL)); going on from step" in _said(place, "died")
    assert [each["state"] for each in run.read()["attempts"]] == ["failed", "finished"]
    assert [line["step"] for line in run.read_metrics()] == list(range(1, 61))
    assert cluster.is_quiet()


@pytest.mark.soak
@pytest.mark.parametrize("on_hang", ["warn", "restart", "stop"])
def test_a_rank_that_hangs_on_another_host_is_named_with_it(
    place: Path, cluster: Any, wait_until: Callable[..., None], on_hang: str, impatient: Path
) -> None:
    name = f"hung-{on_hang}"
    words = ("--nodes", "nodea,nodeb", "--max-restarts", "1", f"on_hang={on_hang}", "checkpoint.every_steps=40")
    job = _start(
        place, name, *words, "optim.max_steps=200", PATH=cluster.environment()["PATH"], PYTHONPATH=str(impatient)
    )
    run = RunDir(place / "runs" / name)
    wait_until(lambda: run.run_json.is_file() and run.checkpoint_steps(), 60)
    worker = sorted(cluster.named("nodeb", "ascendtune.train.worker"))[1]
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: "odd one out" in _said(place, name), 60)
    if on_hang == "warn":
        os.kill(worker, signal.SIGCONT)
    code, said = job.wait(120), _said(place, name)
    assert "rank 1: backward of step" in said or "rank 1: collective of step" in said, said
    assert "odd one out: rank 1 on nodeb" in said
    if on_hang == "stop":
        assert code == 1 and run.read()["exit_cause"]["odd_ranks"] == [1]
        assert "stood out\n   do: the stacks in" in said and "rank 1 on nodeb stood out" in said
    else:
        assert code == 0 and run.read()["state"] == "finished"
        assert [line["step"] for line in run.read_metrics()] == list(range(1, 201))
    if on_hang == "restart":
        assert "rank 1 on nodeb stood out); going on from step" in said
    assert [each["state"] for each in run.read()["attempts"]] == {
        "warn": ["finished"],
        "restart": ["failed", "finished"],
        "stop": ["failed"],
    }[on_hang]
    assert cluster.is_quiet()
