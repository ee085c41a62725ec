"""Which of the causes that several hosts report of one hang stands in run.json."""

from __future__ import annotations

import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.job.backend.ssh import _Run
from ascendtune.job.nodes.connection import Received


def cause_of(odd_ranks: list[int]) -> dict[str, Any]:
    return {"kind": "hang", "code": "run-hung", "what": f"hung: {odd_ranks}", "exit_code": 1, "odd_ranks": odd_ranks}


class Node(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.mark.parametrize("order", [([], [1]), ([1], []), ([1], [0])])
def test_first_cause_that_names_an_odd_rank_replaces_what_ranks_have_noted(
    order: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    run.create("name: a\n", {}, {"exit_cause": None})
    run.begin_attempt({"host": "node0", "hosts": ["node0", "node1"], "world_size": 2, "device": "cpu"})
    run.end_attempt("failed", {"kind": "exception", "what": "the connection to another rank broke", "exit_code": 1})
    inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
    nodes: list[Any] = []
    for name in ("node0", "node1"):
        node = Node(host=SimpleNamespace(name=name), exit_code=None, is_gone=False)
        node.is_over = lambda node=node: node.exit_code is not None
        nodes.append(node)
    spec: Any = SimpleNamespace(run_dir=run.path, launcher_log=lambda place: tmp_path / f"log_{place.node_rank}")
    gathered: Any = SimpleNamespace(nodes=nodes)
    asked: Any = SimpleNamespace(first=None, signals=[])
    for node, odd_ranks in zip(nodes, order, strict=True):
        inbox.put(Received(node, {"ended": 1, "hang": cause_of(odd_ranks)}))
    watched = _Run(spec, gathered, inbox, asked, SimpleNamespace(), 60.0)  # type: ignore[arg-type]
    while not inbox.empty():
        watched._listen()
    ending = watched.until_the_end()
    assert ending.exit_code == 1
    cause = run.read()["exit_cause"]
    assert (cause["kind"], cause["odd_ranks"]) == ("hang", order[0] or order[1])
