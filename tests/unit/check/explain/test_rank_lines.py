"""The rank of a line: by labels of launchers and names of files that other lines explain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.explain.answer.json_form import fields_of
from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation, explain

_WAIT = (
    "[rank{rank}]:[E419 10:42:28.858 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=31, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600013 milliseconds"
)
_SAVING = "Saving model checkpoint to saves/checkpoint-500"


@pytest.mark.parametrize(
    "label",
    [
        "[{rank}] ",
        "Rank {rank}: ",
        "RANK {rank} | ",
        "rank={rank} ",
        "worker-{rank} | ",
        "node-{rank}: ",
        "[worker {rank}] ",
        "<{rank}> ",
        "{rank}: ",
        "[default{rank}]:",
        "[1,{rank}]<stderr>:",
    ],
)
def test_label_that_names_ranks_tells_the_last_line_of_the_missing_one(
    explained: Callable[..., Explanation], label: str
) -> None:
    lines = [label.format(rank=rank) + "start" for rank in range(4)]
    lines += [label.format(rank=2) + _SAVING]
    lines += [label.format(rank=rank) + _WAIT.format(rank=rank) for rank in (0, 1, 3)]

    explanation = explained("\n".join(["world_size: 4", *lines]))

    assert explanation.headline().startswith("rank 2 did not join while saving a checkpoint: 3 other ranks")
    assert explanation.verdict.missing is not None and explanation.verdict.missing.last_line == _SAVING


def _node(directory: Path, node: int, missing: set[int], *, is_told: bool = True) -> None:
    lines = []
    for local in range(4):
        rank = 4 * node + local
        own = ["step 3 loss 1.0", _SAVING] if rank in missing else ["step 3 loss 1.0", _WAIT.format(rank=rank)]
        lines += [f"[default{local}]:{line}" for line in own]
    (directory / f"node{node}.log").write_text("\n".join(lines) + "\n")


def test_local_ranks_of_a_node_are_counted_from_its_first_rank(tmp_path: Path) -> None:
    for node in range(2):
        _node(tmp_path, node, {6})

    explanation = explain([str(tmp_path)])

    assert explanation.headline().startswith("rank 6 did not join while saving a checkpoint: 7 other ranks")
    assert explanation.verdict.missing is not None and explanation.verdict.missing.where.endswith("node1.log:6")


def test_node_of_which_no_line_names_a_rank_stands_where_its_name_puts_it(tmp_path: Path) -> None:
    for node in range(4):
        _node(tmp_path, node, {8, 9, 10, 11})

    explanation = explain([str(tmp_path)])

    assert explanation.headline().startswith("ranks 8-11 did not join while saving a checkpoint: 12 other ranks")


def test_failure_of_a_local_rank_is_that_of_the_global_one(explained: Callable[..., Explanation]) -> None:
    raised = "Traceback (most recent call last):\n  File \"/data/train.py\", line 7, in step\nKeyError: 'tide_level'"
    lines = [f"[default{local}]:[rank{8 + local}]: step 3 loss 1.0" for local in range(4)]

    explanation = explained("\n".join([*lines, *(f"[default3]:{line}" for line in raised.splitlines())]))

    assert explanation.verdict.rank == 11


def test_label_of_a_node_names_no_rank(explained: Callable[..., Explanation]) -> None:
    """srun --label counts its tasks: here each is a launcher of two ranks."""
    lines = [f"{rank // 2}: [rank{rank}]: step 3 loss 1.0" for rank in range(8)]
    lines += [f"{rank // 2}: {_WAIT.format(rank=rank)}" for rank in range(8) if rank != 5]
    lines += [f"2: {_SAVING}"]

    found = explained("\n".join(lines)).verdict.missing

    assert found is not None and found.ranks == (5,) and found.phase == "training"


def test_lines_without_a_rank_may_be_those_of_the_missing_one(explained: Callable[..., Explanation]) -> None:
    waits = [_WAIT.format(rank=rank) for rank in (0, 1, 3)]

    loose = explained("\n".join(["world_size: 4", _SAVING, *waits]))
    told = explained("\n".join(["world_size: 4", *(f"[rank{rank}]: step 3 loss 1.0" for rank in (0, 1, 3)), *waits]))

    assert loose.headline().startswith("rank 2 did not join (no line could be attributed to it): 3 other")
    assert "among those without a rank" in loose.remedies()[0]
    assert told.headline().startswith("rank 2 did not join and wrote no line: 3 other")


_LINK = (
    "[ERROR] 2026-11-29-10:03:33 (PID:200{rank}, Device:{rank}, RankID:{rank}) ERR02200 DIST call hccl api failed.\n"
    "EI0006: [PID: 200{rank}] 2026-11-29-10:03:33.100.200 Getting socket times out. Reason: moon\n"
)


def test_files_that_name_one_rank_each_are_those_of_ranks(explained: Callable[..., Explanation]) -> None:
    bar = "Running tokenizer on dataset:  63%|######3   | 63/100 [02:11<01:17, 0.48 examples/s]\n"
    logs = {f"{rank}": f"[rank {rank}] start\n" + (bar if rank == 2 else _LINK.format(rank=rank)) for rank in range(4)}

    explanation = explained(**logs)

    assert explanation.headline().startswith("rank 2 did not join while preparing data: 3 other ranks")


def test_file_that_names_no_rank_has_that_of_its_name_where_the_others_do(
    explained: Callable[..., Explanation],
) -> None:
    logs = {f"worker{rank}": "Killed\n" if rank == 2 else _LINK.format(rank=rank) for rank in range(4)}

    assert explained(**logs).verdict.rank == 2


def test_lines_of_cann_are_those_of_the_rank_of_their_process(explained: Callable[..., Explanation]) -> None:
    links = [_LINK.format(rank=rank).splitlines() for rank in (0, 1, 3)]
    mixed = [line for lines in zip(*links, strict=True) for line in lines]

    explanation = explained("\n".join(["world_size: 4", "[rank 2] Loading checkpoint shards:  50%|#####", *mixed]))

    assert explanation.headline().startswith("rank 2 did not join while loading the model: 3 other ranks")


def test_last_line_of_each_missing_rank_is_told(explained: Callable[..., Explanation]) -> None:
    logs = {f"rank_{rank}": f"step 3 loss 1.0\n{_WAIT.format(rank=rank)}\n" for rank in range(8)}
    logs |= {"rank_2": "Evaluating: 12%\n", "rank_5": f"{_SAVING}\n"}

    explanation = explained(**logs)

    every = as_text(explanation, columns=200, paint=lambda text, _: text, everything=True)
    assert "last line of rank 5: Saving model checkpoint" in every
    found = fields_of(explanation)["missing"]["last_lines"]
    assert [(line["rank"], line["phase"]) for line in found] == [(2, "evaluating"), (5, "saving a checkpoint")]


def test_missing_rank_of_a_subgroup_is_the_one_between_its_ranks(explained: Callable[..., Explanation]) -> None:
    group = (
        "[rank{rank}]:[E1] [PG ID 3 PG GUID 7(moon_group) Rank {rank}] Exception (either an error or timeout) detected"
    )
    lines = [f"[rank{rank}]: world_size 8, step 3 loss 1.0" for rank in range(8)]
    lines += [line for rank in (4, 6, 7) for line in (_WAIT.format(rank=rank), group.format(rank=rank))]

    found = explained("\n".join(lines)).verdict.missing
    whole = explained("\n".join(lines).replace("moon_group", "default_pg")).verdict.missing

    assert found is not None and found.ranks == (5,)
    assert whole is None
