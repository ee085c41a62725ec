"""The same training on one machine with two processes, on two nodes started by hand, and on two hosts over ssh."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from python_path import python_path
from workplace import Workplace, furnish

pytestmark = pytest.mark.usefixtures("preloaded")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Workplace:
    """With a run `reference` on two processes here."""
    place = furnish(tmp_path_factory.mktemp("nodes"), tiny_model, rows=40, steps=6, per_device=2, every_steps=2)
    assert place.start("reference", "--devices", "2").wait(120) == 0, place.said("reference")
    return place


def test_two_nodes_started_by_hand_are_one_job(place: Workplace) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    usual = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    nodes = [place.start("by-hand", "--devices", "1", **usual, NODE_RANK=str(rank)) for rank in (1, 0)]
    assert [node.wait(120) for node in nodes] == [0, 0], place.said("by-hand", "1") + place.said("by-hand", "0")
    assert place.exact("by-hand") == place.exact("reference")
    assert not list((place.path / "runs").glob(".nodes*"))


@pytest.mark.soak
def test_two_four_and_eight_ranks_have_the_loss_of_one(place: Workplace) -> None:
    for ranks in (1, 2, 4, 8):
        job = place.start(
            f"of-{ranks}", "--devices", str(ranks), f"batch.per_device={8 // ranks}", "method.lora.dropout=0"
        )
        assert job.wait(300) == 0, place.said(f"of-{ranks}")
    curves = [[line["loss"] for line in place.run(f"of-{ranks}").read_metrics()] for ranks in (1, 2, 4, 8)]
    assert len(curves[0]) == 6
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-5)


def test_two_hosts_are_one_job_and_one_loss(place: Workplace, cluster: Any) -> None:
    job = place.start("hosts", "--nodes", "nodea,nodeb", PATH=cluster.environment()["PATH"])
    assert job.wait(120) == 0, place.said("hosts")
    assert place.exact("hosts") == place.exact("reference")
    assert place.run("hosts").read()["attempts"][0]["world_size"] == 2
    assert cluster.is_quiet()


def test_a_host_that_does_not_answer_is_named_before_anything_is_prepared(place: Workplace, cluster: Any) -> None:
    job = place.start("absent", "--nodes", "nodea,nodec", PATH=cluster.environment()["PATH"])
    assert job.wait(60) == 3
    said = place.said("absent")
    assert said.startswith("error: the connection to nodec has ended: ssh: connect to host") and "data:" not in said
    assert not place.run("absent").path.exists()


def test_a_slow_cable_is_not_a_dead_host(place: Workplace, cluster: Any) -> None:
    cluster.slow_down("nodeb", megabits=4)
    try:
        job = place.start("slow", "--nodes", "nodea,nodeb", PATH=cluster.environment()["PATH"])
        assert job.wait(150) == 0, place.said("slow")
    finally:
        cluster.slow_down("nodeb", megabits=None)
    assert place.exact("slow") == place.exact("reference")


def test_a_run_whose_host_dies_continues_from_its_checkpoint(
    place: Workplace, cluster: Any, wait_until: Callable[..., None]
) -> None:
    words = ("--nodes", "nodea,nodeb", "--max-restarts", "1", "optim.max_steps=60")
    job = place.start("died", *words, PATH=cluster.environment()["PATH"])
    run = place.run("died")
    wait_until(lambda: run.run_json.is_file() and run.checkpoint_steps(), 60)
    # torchrun has the worker's words among its own.
    worker = min({*cluster.named("nodeb", "ascendtune.train.worker")} - {*cluster.named("nodeb", "job.torchrun")})
    os.kill(worker, signal.SIGKILL)
    assert job.wait(120) == 0, place.said("died")
    assert "rank 1 on nodeb was killed (SIGKILL)); resuming from step" in place.said("died")
    assert [each["state"] for each in run.read()["attempts"]] == ["failed", "finished"]
    assert [line["step"] for line in run.read_metrics()] == list(range(1, 61))
    assert cluster.is_quiet()


@pytest.mark.soak
@pytest.mark.parametrize("on_hang", ["warn", "restart", "stop"])
def test_a_rank_that_hangs_on_another_host_is_named_with_it(
    place: Workplace, cluster: Any, wait_until: Callable[..., None], on_hang: str, impatient: Path
) -> None:
    name = f"hung-{on_hang}"
    words = ("--nodes", "nodea,nodeb", "--max-restarts", "1", f"on_hang={on_hang}", "checkpoint.every_steps=40")
    job = place.start(
        name, *words, "optim.max_steps=200", PATH=cluster.environment()["PATH"], PYTHONPATH=python_path(impatient)
    )
    run = place.run(name)
    # Their PYTHONPATH lets six interpreters import torch anew, 50 CPU seconds.
    wait_until(lambda: run.run_json.is_file() and run.checkpoint_steps(), 240)
    worker = sorted(cluster.named("nodeb", "ascendtune.train.worker"))[1]
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: "odd rank" in place.said(name), 60)
    if on_hang == "warn":
        os.kill(worker, signal.SIGCONT)
    code, said = job.wait(120), place.said(name)
    assert re.search(r"rank 1: \w+ of step", said), said
    assert "odd rank: rank 1 on nodeb" in said
    if on_hang == "stop":
        assert code == 1 and run.read()["exit_cause"]["odd_ranks"] == [1]
        assert "differed\n   do: the stacks in" in said and "rank 1 on nodeb differed" in said
    else:
        assert code == 0 and run.read()["state"] == "finished"
        assert [line["step"] for line in run.read_metrics()] == list(range(1, 201))
    if on_hang == "restart":
        assert "rank 1 on nodeb differed); resuming from step" in said
    assert [each["state"] for each in run.read()["attempts"]] == {
        "warn": ["finished"],
        "restart": ["failed", "finished"],
        "stop": ["failed"],
    }[on_hang]
    assert cluster.is_quiet()


@pytest.mark.soak
def test_a_run_that_loses_the_host_of_rank_0_continues_with_unequal_ones(
    place: Workplace, cluster: Any, wait_until: Callable[..., None]
) -> None:
    (place.path / "hosts").write_text("[{nodea}] slots=1\n{nodeb} slots=2\n".format(**cluster.addresses))
    words = ("--nodes", "hosts", "--min-nodes", "1", "--max-restarts", "1", "optim.max_steps=60")
    job = place.start("unequal", *words, PATH=cluster.environment()["PATH"])
    run = place.run("unequal")
    wait_until(lambda: run.run_json.is_file() and run.checkpoint_steps(), 60)
    cluster.halt("nodea")
    try:
        assert job.wait(240) == 0, place.said("unequal")
    finally:
        cluster.boot("nodea")
    said, attempts = place.said("unequal"), run.read()["attempts"]
    assert "to return, for at most 120 s" in said and f"continuing without {cluster.addresses['nodea']}" in said
    assert [each["world_size"] for each in attempts] == [3, 2]
    assert [line["step"] for line in run.read_metrics()] == list(range(1, 61))
    assert cluster.is_quiet()
