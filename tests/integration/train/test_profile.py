"""Profiles of real trainings on CPU: faults put into them are the first thing that the report names."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.check.profile.advice import advice_for
from ascendtune.check.profile.advice_entry import Advice
from ascendtune.check.profile.profile import RankProfile, read_profile
from ascendtune.core.rundir import RunDir
from ascendtune.data.collate import collate
from ascendtune.train import batch as batch_module
from ascendtune.train.loop import Loop
from ascendtune.train.profile import step_profile
from ascendtune.train.strategy import gradient_buckets
from ascendtune.train.strategy.base import Strategy

# A busy machine interrupts now this phase and now another: in four steps hardly always the same one.
FOUR_STEPS = {
    "optim": {"max_steps": 6},
    "batch": {"per_device": 2, "accumulate": 2},
    "profile": {"steps": "2-5"},
}
TWO_STEPS = {**FOUR_STEPS, "optim": {"max_steps": 3}, "profile": {"steps": "2-3"}}


def seen(run: RunDir) -> tuple[list[RankProfile], list[Advice]]:
    ranks = read_profile(run.path)
    for each in ranks:
        assert each.split.parts() == pytest.approx(each.split.total, rel=0.01)
    return ranks, advice_for(ranks)


def codes(advice: list[Advice]) -> list[str]:
    return [each.code for each in advice if each.is_defect]


def test_a_healthy_run_has_no_defects_and_trains_as_without_a_profile(train: Any) -> None:
    plain = train(**{**FOUR_STEPS, "profile": {}})
    profiled = train(**FOUR_STEPS)
    assert profiled.losses() == plain.losses()
    assert not plain.run.profile.exists()
    (rank,), advice = seen(profiled.run)
    assert codes(advice) == []
    split = rank.split
    assert split.steps == 4 and not split.on_device
    assert rank.facts["first_step"] == 2
    assert {"matmul", "attention", "norm", "optimizer", "clip", "loss"} <= split.compute.keys()
    # Four steps of two micro-batches, five norms each: two blocks of two, and the last.
    assert split.modules["Qwen2RMSNorm"].calls == 4 * 2 * 5
    assert split.modules["Qwen2RMSNorm"].operators == 6 * split.modules["Qwen2RMSNorm"].calls
    # Only the metrics are read.
    assert [phase for _, phase in split.sync_calls] == ["collective"]
    assert sum(split.sync_calls.values()) == 4
    # The phases of the loop measured the same with a clock of their own.
    recorded = {record["step"]: record["seconds"] for record in profiled.run.read_metrics()}
    assert sum(recorded[step]["step"] for step in range(2, 6)) == pytest.approx(split.total, rel=0.5)
    # Nothing stays installed.
    assert not {"item", "tolist", "__bool__"} & set(vars(torch.Tensor))


def test_a_value_read_in_each_micro_batch_is_named_first(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = Strategy.backward

    def reads_the_loss(self: Strategy, module: Any, loss: torch.Tensor) -> None:
        loss.item()
        backward(self, module, loss)

    monkeypatch.setattr(Strategy, "backward", reads_the_loss)
    for _ in range(3):
        _, advice = seen(train(**FOUR_STEPS).run)
        # Steps take milliseconds: where another process held the core during a copy, copies are slow.
        if "copies" not in codes(advice):
            break
    assert codes(advice) == ["host-sync"]
    assert "2 times in each step" in advice[0].what
    assert "train/test_profile.py:" in advice[0].what


def test_slow_batches_are_named_first(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any, **named: Any) -> Any:
        time.sleep(0.15)
        return collate(*arguments, **named)

    monkeypatch.setattr(batch_module, "collate", slow)
    (rank,), advice = seen(train(**FOUR_STEPS).run)
    assert advice[0].code == "slow-data"
    # Two micro-batches of 150 ms in each of the four steps.
    assert rank.split.data >= 1.2
    assert advice[0].gain == pytest.approx(rank.split.data / 4)


def test_a_copy_in_each_step_is_named_first(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    large = torch.zeros(30_000_000)
    step = Loop._update

    def copies(self: Loop) -> None:
        large.clone()
        step(self)

    monkeypatch.setattr(Loop, "_update", copies)
    (rank,), advice = seen(train(**FOUR_STEPS).run)
    assert advice[0].code == "copies"
    assert "clone" in advice[0].what or "copy_" in advice[0].what
    assert rank.split.operators["aten::clone", "copy"].calls >= 1


def test_a_norm_of_many_operators_is_named_first(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    forward = Qwen2RMSNorm.forward

    def slow(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            hidden_states = hidden_states * 1.0
        return forward(self, hidden_states)

    monkeypatch.setattr(Qwen2RMSNorm, "forward", slow)
    # With several micro-batches it may be said first that the host takes longer to call so many operators.
    _, advice = seen(train(**{**FOUR_STEPS, "batch": {"per_device": 4, "accumulate": 1}}).run)
    assert advice[0].code == "unfused-norm"
    assert "46 operators" in advice[0].what


def test_collections_of_garbage_are_named_first(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [[number] for number in range(2_000_000)]
    backward = Strategy.backward

    def collects(self: Strategy, module: Any, loss: torch.Tensor) -> None:
        gc.collect()
        backward(self, module, loss)

    monkeypatch.setattr(Strategy, "backward", collects)
    (rank,), advice = seen(train(**FOUR_STEPS).run)
    assert advice[0].code == "garbage-collection"
    assert rank.split.aside["garbage collection"] / 4 == pytest.approx(advice[0].gain)
    assert len(kept) == 2_000_000


def test_a_pause_between_two_operators_is_named_first(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = Strategy.backward

    def waits(self: Strategy, module: Any, loss: torch.Tensor) -> None:
        time.sleep(0.2)
        backward(self, module, loss)

    monkeypatch.setattr(Strategy, "backward", waits)
    _, advice = seen(train(**FOUR_STEPS).run)
    assert advice[0].code == "host-pause"
    # Two micro-batches.
    assert advice[0].gain >= 0.4


def test_pages_that_each_step_reads_from_disk_are_counted(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter([5, 10_005])
    monkeypatch.setattr(step_profile, "_major_faults", lambda: next(counted))
    (rank,), advice = seen(train(**FOUR_STEPS).run)
    assert rank.facts["major_faults"] == 10_000
    assert advice[0].code == "paging"


def test_more_threads_than_cores_are_named_first(train: Any) -> None:
    before, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    torch.set_num_threads(4 * cores)
    try:
        (rank,), advice = seen(train(**FOUR_STEPS).run)
    finally:
        torch.set_num_threads(before)
    assert (rank.facts["threads"], rank.facts["cores"]) == (4 * cores, cores)
    assert advice[0].code == "too-many-threads"
    assert f"{4 * cores} threads share {cores} cores" in advice[0].what


@pytest.mark.parametrize("what", ["evaluation", "checkpoint"])
def test_interruptions_of_each_step_are_listed(train: Any, what: str, other_rows: Path) -> None:
    key = {"evaluation": "eval", "checkpoint": "checkpoint"}[what]
    keys = {**FOUR_STEPS, key: {"every_steps": 1}}
    if what == "evaluation":
        keys["data"] = {"eval": str(other_rows)}
    _, advice = seen(train(**keys).run)
    assert f"{what}-in-steps" in [each.code for each in advice]


def on_two_ranks(train_on_ranks: Any, steps: dict[str, Any]) -> tuple[list[RankProfile], list[Advice]]:
    return seen(train_on_ranks(2, parallel={"strategy": "ddp"}, **steps).run)


def test_a_slow_rank_is_named_first(train_on_ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward_backward = Loop._forward_backward

    def slow(self: Loop, *given: Any) -> Any:
        if self.strategy.rank == 1:
            time.sleep(1.0)
        return forward_backward(self, *given)

    monkeypatch.setattr(Loop, "_forward_backward", slow)
    ranks, advice = on_two_ranks(train_on_ranks, TWO_STEPS)
    assert [each.rank for each in ranks] == [0, 1]
    assert advice[0].code == "slow-rank"
    assert "for rank 1," in advice[0].what and "launching operators" in advice[0].what


def test_small_buckets_are_named_first(train_on_ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_buckets, "BUCKET_BYTES", 1000)
    monkeypatch.setattr(gradient_buckets, "_FIRST_BYTES", 1000)
    ranks, advice = on_two_ranks(train_on_ranks, FOUR_STEPS)
    # On a busy machine one rank may truly be the slower one.
    assert next(code for code in codes(advice) if code != "slow-rank") == "small-buckets"
    assert len(ranks[0].split.collectives["all-reduce"]) / 4 > 8


def test_a_profile_ends_with_the_run(train: Any, tmp_path: Path) -> None:
    (rank,), _ = seen(train(**{**TWO_STEPS, "optim": {"max_steps": 4}, "profile": {"steps": "3-9"}}).run)
    assert rank.split.steps == 2
