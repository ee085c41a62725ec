"""The cause of a job among the causes that several hosts report."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.job.backend import ssh
from ascendtune.job.nodes.connection import Inbox, Received
from ascendtune.job.result import LauncherExit


def cause_of(odd_ranks: list[int]) -> dict[str, Any]:
    return {"kind": "hang", "code": "run-hung", "what": f"hung: {odd_ranks}", "exit_code": 1, "odd_ranks": odd_ranks}


class Node(SimpleNamespace):
    __hash__ = object.__hash__


def ending_of(run: RunDir, messages: list[dict[str, Any]], told: set[str] | None = None) -> LauncherExit:
    """Of a job whose hosts, node0 and so on, have sent one of the messages each.

    Args:
        told: what the hosts have been told before.
    """
    inbox = Inbox()
    nodes: list[Any] = []
    for number, message in enumerate(messages):
        node = Node(host=SimpleNamespace(name=f"node{number}"), exit_code=None, is_gone=False)
        node.is_over = lambda node=node: node.exit_code is not None
        nodes.append(node)
        inbox.put(Received(node, message))
    spec: Any = SimpleNamespace(run_dir=run.path, launcher_log=lambda place: run.logs / f"log_{place.node_rank}")
    gathered: Any = SimpleNamespace(nodes=nodes)
    asked: Any = SimpleNamespace(first=None, signals=[])
    watched = ssh._Run(spec, gathered, inbox, asked, SimpleNamespace(), 60.0)  # type: ignore[arg-type]
    watched._sent |= told or set()
    while not inbox.empty():
        watched._listen()
    return watched.wait_for_exit()


@pytest.mark.parametrize(
    ("codes", "told", "blamed"),
    [
        ((1, -9), None, "node1"),
        ((-9, 1), None, "node0"),
        # One after the other, the first is the cause.
        ((-9, -9), None, "node0"),
        # Killed by the command itself, as it did not end.
        ((1, -9), {"kill"}, "node0"),
    ],
)
def test_torchrun_that_was_killed_is_the_cause_although_another_host_had_ended_before(
    codes: tuple[int, int], told: set[str] | None, blamed: str, tmp_path: Path
) -> None:
    messages = [{"ended": code, "hang": None} for code in codes]
    assert ending_of(RunDir(tmp_path), messages, told).host == blamed


@pytest.mark.parametrize("order", [([], [1]), ([1], []), ([1], [0])])
def test_first_cause_that_names_an_odd_rank_replaces_what_ranks_have_noted(
    order: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    run.create("name: a\n", {}, {"exit_cause": None})
    run.begin_attempt({"host": "node0", "hosts": ["node0", "node1"], "world_size": 2, "device": "cpu"})
    run.end_attempt("failed", {"kind": "exception", "what": "the connection to another rank broke", "exit_code": 1})
    ending = ending_of(run, [{"ended": 1, "hang": cause_of(odd_ranks)} for odd_ranks in order])
    assert ending.exit_code == 1
    cause = run.read()["exit_cause"]
    assert (cause["kind"], cause["odd_ranks"]) == ("hang", order[0] or order[1])


def test_host_that_is_told_to_kill_and_does_not_end_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_KILLED_SECONDS", 0.5)
    told: list[dict[str, Any]] = []
    node = Node(host=SimpleNamespace(name="node0"), exit_code=None, is_gone=False)
    node.is_over = lambda: node.is_gone
    node.is_silent = lambda seconds: False
    node.send = lambda **message: told.append(message)
    spec: Any = SimpleNamespace(run_dir=tmp_path, launcher_log=lambda place: tmp_path / "log")
    asked: Any = SimpleNamespace(first=signal.SIGINT, again=True)
    gathered: Any = SimpleNamespace(nodes=[node])
    ending = ssh._Run(spec, gathered, Inbox(), asked, SimpleNamespace(), 60.0).wait_for_exit()  # type: ignore[arg-type]
    assert told == [{"kill": True}]
    assert ending.exit_code and ending.lost and ending.lost.code == "processes-left"
