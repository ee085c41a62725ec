from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ascendtune.core.errors import MachineError
from ascendtune.core.files import write_json
from ascendtune.job.nodes import shared_run
from ascendtune.job.nodes.shared_run import follow, lead
from ascendtune.job.spec import NodePlace

NODE_0 = NodePlace(3, 0, "10.0.0.1", 29500)


def _agree(runs: Path, run: Path) -> list[Path]:
    others = [replace(NODE_0, node_rank=rank) for rank in (1, 2)]
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(follow, runs, place) for place in others]
        pool.submit(lead, runs, NODE_0, run).result(20)
        return [answer.result(20) for answer in answers]


def test_every_node_learns_the_run_of_node_0(tmp_path: Path) -> None:
    assert _agree(tmp_path, tmp_path / "a-2") == [tmp_path / "a-2"] * 2
    assert list(tmp_path.iterdir()) == []


def test_answers_of_an_earlier_start_are_ignored(tmp_path: Path) -> None:
    left = tmp_path / ".nodes_10.0.0.1_29500"
    left.mkdir()
    for rank in (1, 2):
        write_json(left / f"node_{rank}.json", {"nonce": f"old{rank}", "knows": f"old{rank}"})
    write_json(left / "answer.json", {"run": "/yesterday", "nonces": {"1": "old1", "2": "old2"}})
    assert _agree(tmp_path, tmp_path / "a") == [tmp_path / "a"] * 2


def test_a_node_that_never_comes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_run, "_PATIENCE_SECONDS", 0.5)
    write_json(tmp_path / "x", {})
    with pytest.raises(MachineError) as caught:
        lead(tmp_path, NODE_0, tmp_path / "a")
    assert caught.value.code == "nodes-not-started" and "for nodes 1 and 2 (of 3)" in caught.value.what
