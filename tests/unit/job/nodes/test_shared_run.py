from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import MachineError
from ascendtune.core.records import write_json
from ascendtune.job.nodes import shared_run
from ascendtune.job.nodes.shared_run import preparing, publish_run, receive_run
from ascendtune.job.spec import NodePlace

NODE_0 = NodePlace(3, 0, "10.0.0.1", 29500)


def _agree(runs: Path, run: Path) -> list[Path]:
    others = [replace(NODE_0, node_rank=rank) for rank in (1, 2)]
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(receive_run, runs, place) for place in others]
        pool.submit(publish_run, runs, NODE_0, run).result(20)
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


@pytest.mark.parametrize("rank", [0, 1])
def test_files_that_other_users_may_write_are_not_read(rank: int, tmp_path: Path) -> None:
    (left := tmp_path / ".nodes_10.0.0.1_29500").mkdir()
    if rank == 0:
        # Of a directory of another user nothing can be removed.
        left.rmdir()
        (tmp_path / "elsewhere").mkdir()
        left.symlink_to(tmp_path / "elsewhere")
    left.chmod(0o777)
    with pytest.raises(MachineError) as caught:
        if rank == 0:
            publish_run(tmp_path, NODE_0, tmp_path / "a")
        else:
            receive_run(tmp_path, replace(NODE_0, node_rank=rank))
    assert caught.value.code == "writable-by-others"


@pytest.mark.parametrize(
    "answer", [{"nonces": ["1"]}, {"nonces": {"1": 5}}, {"run": 5}, {"run": None}, {"nonces": None}, {}]
)
def test_answer_of_another_form_is_no_answer(
    answer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_run, "_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(secrets, "token_hex", lambda _: "drawn")
    (left := tmp_path / ".nodes_10.0.0.1_29500").mkdir()
    write_json(left / "answer.json", {"run": "/a", "nonces": {"1": "drawn"}} | answer if answer else answer)
    with pytest.raises(MachineError) as caught:
        receive_run(tmp_path, replace(NODE_0, node_rank=1))
    assert caught.value.code == "nodes-not-started"


def test_a_node_that_never_comes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_run, "_PATIENCE_SECONDS", 0.5)
    write_json(tmp_path / "x", {})
    with pytest.raises(MachineError) as caught:
        publish_run(tmp_path, NODE_0, tmp_path / "a")
    assert caught.value.code == "nodes-not-started" and "for nodes 1 and 2 (of 3)" in caught.value.what


def test_node_that_prepares_its_data_is_waited_for_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(shared_run, "say", said.append)
    for name, seconds in {"PATIENCE": 1.5, "SIGN_EVERY": 0.05, "TELL_AFTER": 0, "TELL_EVERY": 0}.items():
        monkeypatch.setattr(shared_run, f"_{name}_SECONDS", seconds)
    node_1, other = replace(NODE_0, nnodes=2, node_rank=1), replace(NODE_0, nnodes=2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(publish_run, tmp_path, other, tmp_path / "a")
        with preparing(tmp_path, node_1) as show:
            show("tokenising training data", 41, 100)
            time.sleep(3)
            assert not waiting.done()
        assert receive_run(tmp_path, node_1) == tmp_path / "a"
        waiting.result(20)
    assert "waiting for node 1 (of 2): node 1 is tokenising training data: 41%" in said
    assert list(tmp_path.iterdir()) == []
