"""Is it a hang, and whose? Judged over made-up beats by a made-up clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ascendtune.job.hang.heartbeat import RankHeartbeat
from ascendtune.job.hang.judge import Hang, Judge, Limits, odd_ranks

LIMITS = Limits()


def beat(rank: int = 0, phase: str = "forward", step: int = 9, at: float = 1000.0) -> RankHeartbeat:
    return RankHeartbeat(
        rank,
        phase,
        step,
        at,
        attempt=1,
        pid=100 + rank,
        start_ticks=5,
        host="here",
        boot_id="boot",
        pid_namespace="pid",
    )


def trained(judge: Judge, *, steps: int = 20, seconds: float = 1.0, ranks: Sequence[int] = (0, 1)) -> float:
    """Let `judge` see some steps; returns the time after them."""
    for step in range(1, steps + 1):
        assert judge.look([beat(rank, step=step, at=step * seconds) for rank in ranks], step * seconds) is None
    return steps * seconds


def looked(judge: Judge, now: float, *beats: RankHeartbeat) -> Hang | None:
    return judge.look(beats, now)


def test_a_run_that_continues_does_not_hang() -> None:
    trained(Judge(LIMITS), steps=500, seconds=7)


def test_without_beats_there_is_nothing_to_judge() -> None:
    assert Judge(LIMITS).look([], 1e9) is None


def test_silence_is_a_hang_after_ten_steps_but_never_within_two_minutes() -> None:
    judge = Judge(LIMITS)
    now = trained(judge, seconds=1)
    silent = [beat(rank, step=20, at=now) for rank in (0, 1)]
    assert looked(judge, now + 119, *silent) is None
    hang = looked(judge, now + 121, *silent)
    assert hang is not None and hang.step == 20 and hang.silent_seconds == 121 and hang.pace_seconds == 1

    slow = Judge(LIMITS)
    now = trained(slow, seconds=60)
    assert looked(slow, now + 590, beat(step=20, at=now)) is None
    assert looked(slow, now + 610, beat(step=20, at=now)) is not None


@pytest.mark.parametrize(
    ("steps", "pace", "phase", "limit"),
    [
        # Judged before the process group gives up.
        (20, 400, "forward", 1200),
        # The first steps wait for compilers.
        *((steps, 1, "forward", 1200) for steps in (0, 1, 4)),
        # Large files are read and written.
        *((20, 1, phase, 3600) for phase in ("loading", "checkpoint", "export")),
    ],
)
def test_long_phases_have_their_own_limits_for_a_hang(steps: int, pace: int, phase: str, limit: int) -> None:
    judge = Judge(LIMITS)
    now = trained(judge, steps=steps, seconds=pace)
    last = beat(phase=phase, step=steps + 1, at=now)
    assert looked(judge, now + limit - 1, last) is None
    assert looked(judge, now + limit + 1, last) is not None


def test_a_resumed_run_learns_its_pace_anew() -> None:
    judge = Judge(LIMITS)
    now = trained(judge, steps=50)
    resumed = replace(beat(step=41, at=now + 60), attempt=2)
    assert looked(judge, now + 60 + 1100, resumed) is None
    assert looked(judge, now + 60 + 1300, resumed) is not None


def test_evaluation_beats_with_every_batch_and_may_compile() -> None:
    judge = Judge(LIMITS)
    now = trained(judge)
    for later in range(0, 7200, 60):
        assert looked(judge, now + later, beat(phase="evaluation", step=20, at=now + later)) is None
    assert looked(judge, now + 7140 + 1201, beat(phase="evaluation", step=20, at=now + 7140)) is not None


def test_ranks_that_wait_for_one_that_writes_a_checkpoint_do_not_hang() -> None:
    judge = Judge(LIMITS)
    now = trained(judge)
    writing = beat(0, "checkpoint", 20, now)
    waiting = [beat(rank, "backward", 21, now) for rank in (1, 2, 3)]
    assert judge.look([writing, *waiting], now + 3000) is None


def test_one_rank_that_still_beats_is_a_slow_run_not_a_hung_one() -> None:
    judge = Judge(LIMITS)
    now = trained(judge)
    assert looked(judge, now + 500, beat(0, step=20, at=now), beat(1, step=20, at=now + 450)) is None


def test_the_pace_is_a_median_one_long_evaluation_changes_nothing() -> None:
    judge = Judge(LIMITS)
    now = trained(judge, steps=20)
    assert looked(judge, now + 5000, beat(step=21, at=now + 5000)) is None
    hang = looked(judge, now + 5121, beat(step=21, at=now + 5000))
    assert hang is not None and hang.pace_seconds == 1


def test_steps_faster_than_the_looks_have_a_pace_too() -> None:
    judge = Judge(LIMITS)
    for look in range(1, 5):
        judge.look([beat(step=look * 100, at=look * 2.0)], look * 2.0)
    hang = judge.look([beat(step=400, at=8.0)], 8 + 121)
    assert hang is not None and hang.pace_seconds == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("places", "odd"),
    [
        (["backward", "data", "backward", "backward"], (1,)),
        (["data", "backward"], (0,)),
        (["backward", "forward", "backward"], (1,)),
        (["backward", "collective", "backward"], (1,)),
        (["backward"] * 4, ()),
    ],
)
def test_the_odd_rank_is_not_where_the_others_are(places: list[str], odd: tuple[int, ...]) -> None:
    assert odd_ranks([beat(rank, phase) for rank, phase in enumerate(places)]) == odd


def test_a_rank_behind_by_a_step_is_odd() -> None:
    ahead = [beat(rank, "backward", 10, at=1001) for rank in (0, 1, 3)]
    assert odd_ranks([*ahead, beat(2, "optimizer", 9, at=1000)]) == (2,)


def test_the_rank_that_was_silent_first_is_odd() -> None:
    assert odd_ranks([beat(0, "backward", at=1000.4), beat(1, "forward", at=1000.1)]) == (1,)
    assert odd_ranks([beat(0, "backward", at=1000.1), beat(1, "optimizer", at=1000.4)]) == (0,)


def test_waiting_ranks_are_not_odd_unless_all_wait() -> None:
    two = [beat(0, "backward", at=1000.1), beat(1, "forward", at=1000.4)]
    assert odd_ranks(two) == (0,)
    assert odd_ranks(two, waiting=[0]) == (1,)
    assert odd_ranks(two, waiting=[0, 1]) == (0,)


def test_a_stopped_process_is_odd_wherever_it_is() -> None:
    assert odd_ranks([beat(0, "data"), beat(1, "backward")], stopped=[1]) == (1,)


def test_stacks_name_the_odd_rank_when_phases_are_equal() -> None:
    same = [beat(rank, "backward") for rank in range(3)]
    assert odd_ranks(same, apart=[2]) == (2,)
    assert odd_ranks(same, apart=[0, 1, 2]) == ()
