"""Jobs of several ranks: the first rank and its cause, never one of those that waited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.check.explain.multi_rank import write, write_labelled

from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation, explain

_DIRECTORIES = 40


@pytest.mark.parametrize("seed", range(_DIRECTORIES))
def test_first_rank_and_its_cause_are_found_in_a_directory(tmp_path: Path, seed: int) -> None:
    expected = write(tmp_path, seed)

    explanation = explain([str(tmp_path)])

    found = explanation.verdict
    assert found.rank == expected.rank, explanation.headline()
    assert found.first is not None
    if expected.entry:
        assert found.missing is None and found.first.hit.entry.id == expected.entry
        return
    assert found.missing is not None and found.missing.ranks == (expected.rank,)
    assert found.missing.phase == expected.phase
    assert (found.missing.last_line == "") == expected.is_silent
    assert f"rank {expected.rank} did not join" in explanation.headline()


@pytest.mark.parametrize("seed", range(_DIRECTORIES))
def test_missing_ranks_are_found_by_the_labels_of_launchers(tmp_path: Path, seed: int) -> None:
    ranks, phase = write_labelled(tmp_path, seed)

    found = explain([str(tmp_path)]).verdict.missing

    assert found is not None and (found.ranks, found.phase) == (ranks, phase)


@pytest.mark.parametrize("seed", range(0, _DIRECTORIES, 3))
def test_answer_on_a_directory_has_at_most_twelve_lines(tmp_path: Path, seed: int) -> None:
    write(tmp_path, seed)
    explanation = explain([str(tmp_path)])

    text = as_text(explanation, columns=100, paint=lambda text, _: text)

    assert len(text.splitlines()) <= 12, text
    more = as_text(explanation, columns=100, paint=lambda text, _: text, everything=True)
    assert "--all" not in more


_TIME_OUT = (
    "[rank{rank}]:[E419 10:42:28.858 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=1, Timeout(ms)=600000) ran for 600013 milliseconds"
)


def test_rank_in_another_collective_is_named(explained: Callable[..., Explanation]) -> None:
    works = [(31, "ALLREDUCE"), (31, "ALLREDUCE"), (30, "_ALLGATHER_BASE"), (31, "ALLREDUCE")]
    lines = [_TIME_OUT.format(rank=rank, number=work[0], operation=work[1]) for rank, work in enumerate(works)]

    explanation = explained("\n".join(lines))

    assert explanation.verdict.missing is not None and explanation.verdict.missing.ranks == (2,)
    assert "_ALLGATHER_BASE 30, the others ALLREDUCE 31" in explanation.headline()


_SIZED = _TIME_OUT.replace("NumelIn=1,", "NumelIn={elements}, NumelOut={elements},")
_WORK = (77, "ALLREDUCE", 7777)


@pytest.mark.parametrize(
    ("second", "told", "remedy"),
    [
        ((76, "ALLREDUCE", 7777), "rank 1 fell behind the others (ALLREDUCE 76, the others ALLREDUCE 77): 3", "py-spy"),
        ((76, "BROADCAST", 7), "rank 1 fell behind the others (BROADCAST 76, the others ALLREDUCE 77): 3", "py-spy"),
        ((77, "BROADCAST", 7777), "rank 1 called another collective than the others (BROADCAST 77, the ", "only some"),
        (
            (77, "ALLREDUCE", 7776),
            "rank 1 gave ALLREDUCE 77 another number of elements than the others (7776, the others 7777)",
            "only some",
        ),
    ],
)
def test_rank_in_an_earlier_collective_is_behind_and_another_one_at_the_same_number_is_a_mismatch(
    explained: Callable[..., Explanation], second: tuple[int, str, int], told: str, remedy: str
) -> None:
    works = enumerate([_WORK, second, _WORK, _WORK])
    explanation = explained(
        "\n".join(
            _SIZED.format(rank=rank, number=number, operation=operation, elements=elements)
            for rank, (number, operation, elements) in works
        )
    )

    assert explanation.headline().startswith(told)
    assert any(remedy in each for each in explanation.remedies())
    assert "without a time-out" not in explanation.sureness


@pytest.mark.parametrize(
    "works",
    [
        # Ranks may gather unequal parts, or exchange them in pairs.
        [(77, "ALLGATHER", 7), (77, "ALLGATHER", 6), (77, "ALLGATHER", 7)],
        [(77, "SEND", 7), (77, "RECV", 7), (77, "SEND", 7)],
        # Two of each: nothing tells who is wrong, if any of them.
        [(77, "ALLREDUCE", 7), (77, "ALLREDUCE", 7), (77, "ALLREDUCE", 6), (77, "ALLREDUCE", 6)],
        # Most ranks cannot be what the others waited for.
        [(76, "ALLREDUCE", 7), (76, "ALLREDUCE", 7), (77, "ALLREDUCE", 7)],
    ],
)
def test_works_that_may_differ_blame_no_rank(
    explained: Callable[..., Explanation], works: list[tuple[int, str, int]]
) -> None:
    lines = [
        _SIZED.format(rank=rank, number=number, operation=operation, elements=elements)
        for rank, (number, operation, elements) in enumerate(works)
    ]

    assert explained("\n".join(lines)).verdict.missing is None


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (
            (75, "ALLREDUCE", 7777),
            "rank 1 fell behind the other (ALLREDUCE 75, the other ALLREDUCE 77): 1 other rank",
        ),
        ((77, "BROADCAST", 7), "rank 1 called BROADCAST 77 where rank 0 called ALLREDUCE 77"),
        (
            (77, "ALLREDUCE", 7),
            "rank 1 called ALLREDUCE 77 (NumelIn=7) where rank 0 called ALLREDUCE 77 (NumelIn=7777)",
        ),
        ((77, "ALLREDUCE", 7777), "a collective (ALLREDUCE)"),
    ],
)
def test_two_ranks_in_different_calls_are_told_of_and_neither_is_accused(
    explained: Callable[..., Explanation], second: tuple[int, str, int], told: str
) -> None:
    lines = [
        _SIZED.format(rank=rank, number=number, operation=operation, elements=elements)
        for rank, (number, operation, elements) in enumerate([_WORK, second])
    ]

    assert explained("\n".join(lines)).headline().startswith(told)
    # Of a larger job the two may be in groups of their own.
    among_others = "\n".join([*(f"[rank{rank}]: world_size=8" for rank in range(8)), *lines])
    assert explained(among_others).verdict.missing is None


def test_a_level_between_the_time_and_the_rank_belongs_to_the_prefix(explained: Callable[..., Explanation]) -> None:
    started = [f"2026-11-25 10:00:00,123 INFO [rank{rank}] world_size: 4" for rank in range(3)]
    silent = ["[2026-11-25 10:00:01] - WARNING - [rank3] Tokenizing train dataset"]
    waited = _TIME_OUT.replace("[rank{rank}]:", "2026-11-25 10:42:28,858 ERROR [rank{rank}] ")
    lines = [*started, *silent, *(waited.format(rank=rank, number=1, operation="ALLREDUCE") for rank in range(3))]

    assert explained("\n".join(lines)).headline().startswith("rank 3 did not join while preparing data: 3 other")


def test_collectives_of_another_process_group_are_not_compared(explained: Callable[..., Explanation]) -> None:
    lines = [_TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") for rank in range(4)]
    groups = [line.replace("[Rank", f"[PG ID 1 PG GUID {7 + (rank == 3)} Rank") for rank, line in enumerate(lines)]
    groups[3] = groups[3].replace("SeqNum=31", "SeqNum=7")

    assert explained("\n".join(groups)).verdict.missing is None


def test_all_ranks_in_one_time_out_blame_no_rank(explained: Callable[..., Explanation]) -> None:
    lines = [_TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") for rank in range(4)]

    verdict = explained("\n".join(lines)).verdict
    assert verdict.missing is None and verdict.rank is None


def test_few_time_outs_among_many_ranks_blame_no_rank(explained: Callable[..., Explanation]) -> None:
    steps = [f"[rank{rank}]: step 3 loss 1.0" for rank in range(8)]

    assert explained("\n".join([*steps, _TIME_OUT.format(rank=5, number=31, operation="X")])).verdict.missing is None


def test_ranks_that_a_message_lists_as_absent_are_named(explained: Callable[..., Explanation]) -> None:
    explanation = explained(
        "[rank0]: topo exchange server get socket timeout! timeout[120 s]\n"
        '[rank0]: EI0015: fault_info["Failed to connect agent[1,3,5,7,]"]\n[rank3]: Loading checkpoint shards: 1/4\n'
    )

    assert explanation.verdict.missing is not None and explanation.verdict.missing.ranks == (1, 3, 5, 7)
    assert explanation.headline().startswith("ranks 1, 3, 5, 7 did not join")


_CAME = "[topo.cc:7] [77][Server][DisplayConnectedRank]connected rankinfo[LINE {line}]: {ranks};\n"


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ("[4],[6],[7]", "rank 5 did not join"),
        ("[0000004],[0000005],[0000007]", "rank 6 did not join"),
        ("[4],[5],[6]", "not all ranks came to the root"),
        ("[77]", "not all ranks came to the root"),
    ],
)
def test_ranks_that_the_roots_list_of_those_connected_lacks_are_named(
    explained: Callable[..., Explanation], second: str, told: str
) -> None:
    explanation = explained(
        "[ERROR] HCCL(7,python): [topo.cc:7] topo exchange server get socket timeout! timeout[7 s]\n"
        + _CAME.format(line=0, ranks="[0],[1],[2],[3]")
        + _CAME.format(line=1, ranks=second)
    )

    assert explanation.headline().startswith(told)


def test_message_below_an_error_is_that_of_the_same_rank(explained: Callable[..., Explanation]) -> None:
    lines = [
        "[rank1]: CMake Error at CMakeLists.txt:18 (find_package):",
        "[rank0]: step 7 loss 1.25",
        "[rank1]:   Could not find moon in any of its places",
        "[rank0]: step 8 loss 1.24",
    ]

    assert "Could not find moon" in explained("\n".join(lines)).headline()


def test_a_rank_that_others_waited_for_and_that_said_why_is_the_cause(explained: Callable[..., Explanation]) -> None:
    waiting = [_TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") for rank in (0, 1, 3)]
    logs = {f"rank{rank}": line for rank, line in zip((0, 1, 3), waiting, strict=True)}
    said = '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/data/train.py", line 7, in step\n'
    logs["rank2"] = f"{said}[rank2]: KeyError: 'tide_level'"

    explanation = explained(**logs)

    assert explanation.verdict.rank == 2
    assert explanation.verdict.missing is None
    assert "tide_level" in explanation.headline()


_LOST = (
    '[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/data/train.py", line 88, in main\n'
    "[rank{rank}]:     dist.all_reduce(loss)\n[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: "
    "/moon/ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error, NCCL version 2.21.5\n"
)


def test_rank_that_the_others_lost_is_named(explained: Callable[..., Explanation]) -> None:
    steps = "".join(f"[rank{rank}]: step 3 loss 1.0\n" for rank in range(4))
    last = "[rank2]: Loading checkpoint shards:  33%|###3      | 1/3 [01:12<02:24, 72.1s/it]\n"

    explanation = explained(steps + last + "".join(_LOST.format(rank=rank) for rank in (0, 1, 3)))

    assert explanation.verdict.rank == 2
    assert explanation.headline() == (
        "rank 2 ended, or lost the network, while loading the model: 3 other ranks lost the connection to it"
    )
    assert "time-out" not in explanation.sureness


def test_rank_whose_traceback_is_cut_off_in_the_call_of_the_others_waited_too(
    explained: Callable[..., Explanation],
) -> None:
    steps = [f"[rank{rank}]: step 3 loss 1.0\n" for rank in range(6)]
    whole = [_LOST.format(rank=rank) for rank in (0, 1, 2, 4)]
    begun = "".join(_LOST.format(rank=3).splitlines(keepends=True)[:3])

    assert explained("".join([*steps, *whole, begun])).verdict.rank == 5
    elsewhere = begun.replace("train.py", "data.py")
    assert explained("".join([*steps, *whole, elsewhere])).verdict.rank == 3


def test_phase_of_a_missing_rank_is_not_told_of_the_others(explained: Callable[..., Explanation]) -> None:
    steps = [f"[rank{rank}]: step 3 loss 1.0\n" for rank in range(6)]
    waits = [_TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") + "\n" for rank in (0, 1, 2, 3)]
    saving = "[rank5]: Saving model checkpoint to saves/checkpoint-500\n"

    explanation = explained("".join([*steps, saving, *waits]))

    assert explanation.verdict.rank == 5
    assert explanation.headline().startswith("ranks 4-5 did not join (rank 5 while saving a checkpoint)")


@pytest.mark.parametrize(
    ("ranks", "missing"),
    [
        ({*range(16)} - {5}, (5,)),
        ({*range(4)} - {2}, (2,)),
        ({*range(4)} - {1, 2}, None),
        ({*range(32)} - {*range(16, 24)}, (16, 17, 18, 19, 20, 21, 22, 23)),
        ({*range(24)} - {*range(8, 16)}, None),
        ({0, 9}, None),
        ({*range(1, 8)}, (0,)),
        ({*range(7)}, (7,)),
        ({*range(15)}, (15,)),
        ({*range(8)}, None),
        ({*range(9)}, None),
        ({*range(8, 16)}, None),
        ({*range(3)}, None),
    ],
)
def test_rank_without_any_line_is_missing_where_the_others_are_many(
    explained: Callable[..., Explanation], ranks: set[int], missing: tuple[int, ...] | None
) -> None:
    lines = [_TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") for rank in sorted(ranks)]

    found = explained("\n".join(lines)).verdict.missing

    assert (found.ranks if found else None) == missing
    assert found is None or found.last_line == ""


def test_rank_whose_log_was_not_given_is_not_said_to_be_silent(explained: Callable[..., Explanation]) -> None:
    waits = {f"rank_{rank}": _TIME_OUT.format(rank=rank, number=31, operation="X") for rank in (0, 1, 3, 4, 5, 6, 7)}

    explanation = explained(**waits)

    assert explanation.headline().startswith("rank 2 did not join (its log was not given): 7 other ranks waited")
    assert "add the log of rank 2" in explanation.remedies()[0]
    assert "wrote no line" in explained(**waits, rank_2="\n").headline()
    assert "wrote no line" in explained("\n".join(waits.values())).headline()


@pytest.mark.parametrize(
    ("first", "number", "is_set_up"),
    [("", 1, True), ("", 2, False), ("step 400 loss 1.2\n", None, False), ("start\n", None, True)],
)
def test_set_up_is_advised_only_where_the_ranks_had_not_found_each_other_before(
    explained: Callable[..., Explanation], first: str, number: int | None, is_set_up: bool
) -> None:
    line = _TIME_OUT if number else _TIME_OUT.replace("SeqNum={number}, ", "")
    waits = [line.format(rank=rank, number=number, operation="ALLREDUCE") for rank in range(7)]

    explanation = explained(first + "\n".join(waits))

    assert explanation.headline().startswith("rank 7 did not join")
    assert any("MASTER_ADDR" in remedy for remedy in explanation.remedies()) == is_set_up


@pytest.mark.parametrize(
    ("last", "has_left"),
    [
        ("Training finished, model saved", True),
        ("epoch 7: training finished for epoch 7", False),
        ("Training completed. Do not forget to share your model on huggingface.co/models =)", False),
    ],
)
def test_rank_that_finished_left_the_others(explained: Callable[..., Explanation], last: str, has_left: bool) -> None:
    waits = {f"rank_{rank}": _TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") for rank in (0, 2, 3)}

    explanation = explained(**waits, rank_1=f"[rank1]: step 7 loss 2.5\n[rank1]: {last}\n")

    assert explanation.headline().startswith("rank 1 finished and left: 3 other") == has_left
    assert any("py-spy" in remedy for remedy in explanation.remedies()) != has_left
    first = explanation.verdict.first
    assert first is not None and "HCCL" not in first.hit.entry.source


@pytest.mark.parametrize(
    "line",
    [
        "[launch.py:158:main] dist_world_size=4",
        "[launch.py:163:main] nnodes=1, num_local_procs=4, node_rank=0",
        "[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3",
        "Num processes: 4",
        "accelerate launch --num_processes 4 t.py",
        "deepspeed --num_gpus 4 t.py",
        "  nproc_per_node   : 4",
        "  max_nodes        : 2\n  nproc_per_node   : 2",
        "Timed out after 7 seconds waiting for clients. 3/4 clients joined.",
    ],
)
def test_last_rank_is_missing_where_a_launcher_tells_the_number_of_ranks(
    explained: Callable[..., Explanation], line: str
) -> None:
    waits = [_TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") for rank in range(3)]

    found = explained("\n".join([line, *waits])).verdict.missing

    assert found is not None and found.ranks == (3,)


def test_missing_rank_that_was_killed_was_killed(explained: Callable[..., Explanation]) -> None:
    """In one log of all ranks the time-outs of others stand just above its last line."""
    waits = [_TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") for rank in (0, 1, 3)]

    explanation = explained("\n".join([waits[0], "[rank2]: step 3 loss 1.0", waits[1], "[rank2]: Killed", waits[2]]))

    assert explanation.verdict.rank == 2
    assert explanation.verdict.first is not None and explanation.verdict.first.hit.entry.id == "killed"


def test_rank_that_was_killed_is_the_cause_although_others_said_first_that_they_wait(
    explained: Callable[..., Explanation],
) -> None:
    killed = "[rank2]: /x/run.sh: line 7: 77 Killed    python train.py\n"
    waits = "".join(_TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") + "\n" for rank in (0, 1))

    verdict = explained(f"[rank2]: step 3 loss 1.0\n{waits}{killed}").verdict

    assert verdict.rank == 2 and verdict.first is not None and verdict.first.hit.entry.id == "killed"


def test_rank_that_lost_those_that_gave_up_is_the_one_they_waited_for(explained: Callable[..., Explanation]) -> None:
    waits = [_TIME_OUT.format(rank=rank, number=31, operation="ALLREDUCE") + "\n" for rank in (0, 1, 3)]
    saving = "[rank2]: Saving model checkpoint to saves/checkpoint-500\n"

    explanation = explained("".join([saving, *waits, _LOST.format(rank=2)]))

    assert explanation.headline().startswith("rank 2 did not join while saving a checkpoint: 3 other ranks waited")


@pytest.mark.parametrize(
    "lost",
    [
        "misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node2<43210>",
        "misc/socket.cc:484 NCCL WARN socketProgress: Call to recv from 10.0.0.2<7> failed : Connection reset by peer",
    ],
)
def test_system_error_of_nccl_after_a_lost_connection_names_the_lost_rank(
    explained: Callable[..., Explanation], lost: str
) -> None:
    raised = (
        "Traceback (most recent call last):",
        '  File "/x/train.py", line 9, in <module>',
        "    dist.all_reduce(x)",
        "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, unhandled system error (run "
        "with NCCL_DEBUG=INFO for details), NCCL version 2.20.5",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
        "Last error:",
        lost.partition("NCCL WARN ")[2],
    )
    lines = ["[rank0]: step 1 loss 1.2", "[rank1]: step 1 loss 1.2", f"node1:8123:8460 [0] {lost}"]

    explanation = explained("\n".join([*lines, *(f"[rank0]: {line}" for line in raised)]))

    assert explanation.verdict.missing is not None and explanation.verdict.missing.ranks == (1,)
    assert "rank 1 ended, or lost the network" in explanation.headline()


def test_rank_that_missed_a_monitored_barrier_is_named(explained: Callable[..., Explanation]) -> None:
    """Rank 0 knows which one it was; the others report that they lost rank 0."""
    explanation = explained(
        "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
        "[rank0]: RuntimeError: [Rank 0]: Ranks 2, 5 failed to pass monitoredBarrier in 5000 ms\n"
    )

    assert explanation.verdict.missing is not None and explanation.verdict.missing.ranks == (2, 5)
    assert "ranks 2, 5 did not join" in explanation.headline()


_SUMMARY = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nFailures:\n  <NO_OTHER_FAILURES>\n"
    "Root Cause (first observed failure):\n[0]:\n  host      : moon\n  rank      : {rank} (local_rank: {rank})\n"
    "  exitcode  : {code} (pid: 7)\n"
)
_CLOSED = "W0707 07:07:07.0 7 torch/api.py:7] Sending process 77 closing signal SIGTERM\n"
_GONE = "[rank{rank}]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:44418.\n"


@pytest.mark.parametrize(
    ("rank", "code", "closed", "ended"),
    [
        (3, 1, 2, "rank 2 ended with exit code 0, while training"),
        (2, -6, 3, "rank 2 ended with exit code -6, while training"),
        # It was alive when the launcher ended all of them.
        (3, 1, 3, "rank 2 ended, or lost the network"),
        # It may be one of another node.
        (1, 1, 2, "rank 2 ended, or lost the network"),
    ],
)
def test_torchrun_reports_how_the_lost_rank_ended(
    explained: Callable[..., Explanation], rank: int, code: int, closed: int, ended: str
) -> None:
    gone = "".join(_GONE.format(rank=each) for each in (0, 1, 3))

    explanation = explained(
        job=gone + _CLOSED * closed + _SUMMARY.format(rank=rank, code=code), rank_2="step 7 loss 2.5\n"
    )

    assert explanation.headline().startswith(ended)
    assert ("DistributedSampler" in explanation.remedies()[0]) == ("code 0" in ended)


def test_log_whose_name_continues_behind_that_of_the_launcher_is_another_one(tmp_path: Path) -> None:
    """The lost rank may be one of another node, whose launcher the logs do not have."""
    gone = "".join(_GONE.format(rank=each) for each in (0, 1))
    launcher, of_rank = tmp_path / "job", tmp_path / "job.rank_2.log"
    launcher.write_text(gone + _CLOSED + _SUMMARY.format(rank=1, code=1))
    of_rank.write_text("[rank2]: step 7 loss 2.5\n")

    assert explain([str(launcher), str(of_rank)]).headline().startswith("rank 2 ended, or lost the network")


def test_rank_that_torchrun_saw_fail_first_is_the_lost_one(explained: Callable[..., Explanation]) -> None:
    """It wrote no line that names it, and the log does not say how many ranks there are."""
    explanation = explained(_GONE.format(rank=0) + _CLOSED + _SUMMARY.format(rank=1, code=7))

    assert explanation.headline().startswith("rank 1 ended with exit code 7: 1 other rank lost the connection")


def test_rank_that_never_joined_is_named_where_the_others_waited_for_its_address(
    explained: Callable[..., Explanation],
) -> None:
    waited = "".join(
        f"[default{rank}]:[rank{rank}]: torch.distributed.DistStoreError: wait timeout after 7000ms, keys: /7//cpu/0\n"
        for rank in (0, 2, 3)
    )

    explanation = explained(f"[default1]:Map (num_proc=8):  43%|####3     | 215/500 [17:10<22:45]\n{waited}")

    assert explanation.headline().startswith("rank 1 did not join while preparing data: 3 other ranks waited")


def test_tracebacks_that_many_ranks_write_at_once_are_put_together(explained: Callable[..., Explanation]) -> None:
    frames = [f'  File "/x/moon.py", line {line}, in call_{line}\n    call()' for line in range(1, 9)]
    rows = "\n".join(["Traceback (most recent call last):", *frames, "ValueError: the tide of 7 o'clock"]).split("\n")
    lines = [f"[rank{rank}]: {row}" for row in rows for rank in range(64)]

    first = explained("\n".join(lines)).verdict.first

    assert first is not None and first.trace is not None and len(first.trace.frames) == 8


_LACKING = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 2, in <module>\n    import moon\n'
    "ModuleNotFoundError: No module named 'moon'\n"
)
_ALONE = "alone lacks it: its host, or the Python"


def test_module_that_one_rank_alone_lacks_makes_its_python_suspect(explained: Callable[..., Explanation]) -> None:
    explanation = explained(rank_0="step 1 loss 2.0\n", rank_1="step 1 loss 2.0\n", rank_3=_LACKING)

    assert explanation.remedies()[0].startswith("by these logs rank 3 alone lacks it")


@pytest.mark.parametrize("others", [{}, {"rank_0": "", "rank_1": ""}, {"rank_0": _LACKING, "rank_1": _LACKING}])
def test_module_that_no_other_rank_is_known_to_have_blames_no_host(
    explained: Callable[..., Explanation], others: dict[str, str]
) -> None:
    assert not any(_ALONE in remedy for remedy in explained(**others, rank_3=_LACKING).remedies())


def test_module_that_several_ranks_of_one_log_lack_blames_no_host(explained: Callable[..., Explanation]) -> None:
    text = "".join(f"[rank{rank}]: {line}\n" for rank in range(3) for line in _LACKING.splitlines())

    assert not any(_ALONE in remedy for remedy in explained(text).remedies())
