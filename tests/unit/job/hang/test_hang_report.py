from __future__ import annotations

from pathlib import Path

from ascendtune.job.hang.hang_report import HangReport, ranks
from ascendtune.job.hang.heartbeat import RankHeartbeat
from ascendtune.job.hang.stacks import Frame, RankStack

REDUCE = Frame("/x/torch/distributed/distributed_c10d.py", 3099, "all_reduce")
BACKWARD = Frame("/x/torch/autograd/graph.py", 979, "_engine_run_backward")
MAKE = Frame("/x/src/ascendtune/train/batch.py", 70, "make")


def stack(rank: int, phase: str, frame: Frame | None, *, silent: float = 123, stopped: bool = False) -> RankStack:
    beat = RankHeartbeat(
        rank,
        phase,
        12,
        1000.0,
        attempt=1,
        pid=100 + rank,
        start_ticks=5,
        host="here",
        boot_id="boot",
        pid_namespace="pid",
    )
    frames, source = ((frame,), "faulthandler") if frame else ((), "no stack: it does not answer")
    return RankStack(beat, silent, frames, source, stopped, Path(f"rank_{rank}.txt"))


def verdict(*stacks: RankStack, elsewhere: tuple[RankHeartbeat, ...] = ()) -> HangReport:
    return HangReport((*(each.beat for each in stacks), *elsewhere), stacks, Path("log/stacks_1"))


def test_ranks_in_the_same_place_are_one_line() -> None:
    said = verdict(
        *(stack(rank, "backward", REDUCE, silent=120 + rank) for rank in (0, 2, 3, 4)), stack(1, "data", MAKE)
    )
    assert said.lines() == [
        "ranks 0, 2-4: backward of step 12 for 2:00; in all_reduce at torch/distributed/distributed_c10d.py:3099",
        "rank 1: data of step 12 for 2:03; in make at ascendtune/train/batch.py:70",
        "odd rank: rank 1",
        "stacks: log/stacks_1",
    ]


def test_in_the_same_phase_the_rank_that_is_not_in_a_collective_is_odd() -> None:
    assert verdict(stack(0, "backward", REDUCE), stack(1, "backward", MAKE)).odd == (1,)
    assert verdict(stack(0, "backward", REDUCE), stack(1, "backward", REDUCE)).odd == ()
    assert verdict(stack(0, "backward", MAKE), stack(1, "backward", MAKE)).odd == (), "nobody waits"


def test_a_rank_in_its_backward_pass_is_odd_where_others_are_in_a_collective() -> None:
    assert verdict(stack(0, "backward", REDUCE), stack(1, "backward", BACKWARD), stack(2, "backward", REDUCE)).odd == (
        1,
    )
    assert verdict(stack(0, "collective", REDUCE), stack(1, "backward", BACKWARD)).odd == (1,)
    # Threads of the device may have the collectives of all of them.
    assert verdict(stack(0, "backward", BACKWARD), stack(1, "backward", BACKWARD)).odd == ()
    assert verdict(stack(0, "backward", BACKWARD), stack(1, "backward", MAKE)).odd == (1,)


def test_a_stopped_rank_is_odd_and_needs_no_stack() -> None:
    said = verdict(stack(0, "backward", REDUCE), stack(1, "backward", None, stopped=True))
    assert said.odd == (1,)
    assert "rank 1: backward of step 12 for 2:03; stopped by a signal; no stack: it does not answer" in said.lines()


def test_ranks_of_other_machines_are_named_with_their_host() -> None:
    far = RankHeartbeat(
        2, "start", 0, 5.0, attempt=1, pid=7, start_ticks=5, host="there", boot_id="boot", pid_namespace="pid"
    )
    said = verdict(stack(0, "backward", REDUCE), stack(1, "backward", REDUCE), elsewhere=(far,))
    assert said.odd == (2,) and "rank 2 on there: start, before the first step" in said.lines()


def test_a_run_that_continues_has_no_odd_rank() -> None:
    said = verdict(stack(0, "backward", REDUCE, silent=0.1), stack(1, "data", MAKE))
    assert said.odd == () and "the run continues: this is a snapshot" in said.lines()


def test_a_single_rank_is_not_odd() -> None:
    assert not any("odd" in line or "differs" in line for line in verdict(stack(0, "data", MAKE)).lines())


def test_a_program_can_read_it() -> None:
    said = verdict(stack(0, "backward", REDUCE), stack(1, "data", MAKE)).as_json()
    assert said["odd"] == [1] and said["directory"] == "log/stacks_1"
    assert said["ranks"][1]["frames"] == [{"function": "make", "file": "/x/src/ascendtune/train/batch.py", "line": 70}]


def test_numbers_of_ranks_are_short() -> None:
    assert (ranks([1]), ranks([3, 0, 2, 4, 9]), ranks([1, 2])) == ("rank 1", "ranks 0, 2-4, 9", "ranks 1, 2")
