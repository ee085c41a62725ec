"""Trainings that were resumed, and batches that are those of other steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ascendtune.check.align import input_findings
from ascendtune.check.align.curve import Curve
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import TrainingRecord, read_training_record
from ascendtune.check.align.verdict import verdict
from bare_loop import Bare, rows_of


def side(
    name: str,
    batches: Sequence[object],
    *,
    losses: Sequence[float] = (),
    attempts: Sequence[int] = (),
    rates: Sequence[float] = (),
) -> TrainingRecord:
    count = len(batches)
    columns = {
        "step": np.arange(1.0, count + 1),
        "loss": np.array(losses or [2.0] * count),
        "attempt": np.array(attempts or [1] * count, dtype=float),
        "learning_rate": np.array(rates or [1e-3] * count),
    }
    hashes = [None if each is None else str(each) for each in batches]
    curve = Curve.of_columns(columns, hashes, resolution=0.0, source=name)
    return TrainingRecord(name, Path(name), "ascendtune", curve, recipe={}, precision="fp32", layers=2)


def _told(one: TrainingRecord, other: TrainingRecord) -> tuple[TrainingComparison, str]:
    found = compare_trainings(one, other, expected_noise(one, other))
    return found, verdict(found, one, other)


@pytest.fixture
def bare_pair(tmp_path: Path) -> Callable[..., tuple[TrainingRecord, TrainingRecord]]:
    """A bare loop on one rank, and one with changes."""

    def make(**changes: object) -> tuple[TrainingRecord, TrainingRecord]:
        paths = (Bare().run(tmp_path / "gpu"), Bare(**changes).run(tmp_path / "npu"))  # type: ignore[arg-type]
        one, other = map(read_training_record, paths)
        return one, other

    return make


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ([1, 2, 3, 4, 3, 4, 5, 6], "from step 5 on npu has the batches of gpu from step 3 on: some come twice"),
        ([1, 2, 3, 4, 6, 7, 8, 9], "from step 5 on npu has the batches of gpu from step 6 on: some are left out"),
        ([1, 2, 3, 4, 15, 16, 17, 18], None),
        # One of them may be a coincidence.
        ([1, 2, 3, 4, 5, 6, 7, 3], None),
        ([1, 2, 3, 4, 3, 4, 15, 6], None),
    ],
)
def test_batches_of_other_steps_are_named_as_such(batches: list[int], told: str | None) -> None:
    found = input_findings.data(side("gpu", range(1, 9)), side("npu", batches))
    assert found.status == "failure"
    assert found.measured.partition("; ")[2] == (told or "")


def test_hashes_of_a_recording_and_of_a_run_are_of_different_kinds() -> None:
    recorded, ours = side("gpu", [f"tokens-{each}" for each in range(4)]), side("npu", range(4))
    assert input_findings.data(recorded, ours).status == "unknown"
    assert input_findings.data(recorded, recorded).status == "ok"
    other = side("npu", [*recorded.curve.batch_hashes[:3], "tokens-9"])
    found = input_findings.data(recorded, other)
    assert found.status == "failure" and found.measured == "the batches of step 4 differ in token ids"


def test_verdict_names_the_step_of_the_other_batch_whenever_the_losses_show_it() -> None:
    one, other = side("gpu", range(8)), side("npu", [0, 1, 2, 13, 14, 15, 16, 17], losses=[2.0] * 5 + [2.5] * 3)
    found, said = _told(one, other)
    assert (found.divergence and found.divergence.code, found.step) == ("data", 4)
    assert said.startswith("gpu and npu diverge at step 4, data: the batches of step 4 differ in rows")


@pytest.mark.parametrize(("step", "is_named"), [(5, True), (6, True), (7, True), (8, False), (4, False)])
def test_resumption_just_before_the_difference_is_in_the_verdict(step: int, is_named: bool) -> None:
    losses = [2.0] * (step - 1) + [2.5] * (11 - step)
    one = side("gpu", range(10))
    found, said = _told(one, side("npu", range(10), losses=losses, attempts=[1] * 4 + [2] * 6))
    assert found.divergence is not None and found.step == step
    assert said.endswith("; npu was resumed from a checkpoint, and goes on with step 5") is is_named
    assert ("restored from the checkpoint" in str(found.divergence.remedy)) is is_named
    assert found.divergence in found.findings


def test_run_that_began_again_from_its_first_step_was_not_resumed() -> None:
    assert side("npu", range(4), attempts=[2] * 4).resumed_at == ()
    assert side("npu", range(6), attempts=[1, 1, 3, 3, 4, 4]).resumed_at == (3, 5)


@pytest.mark.parametrize(("listed", "expected"), [([3, 5], (3, 5)), ("3", ()), ([3.5, None], ())])
def test_resumed_recording_names_its_steps(tmp_path: Path, listed: object, expected: tuple[int, ...]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (tmp_path / "recorded.json").write_text(json.dumps({"resumed_at": listed}))
    assert read_training_record(tmp_path).resumed_at == expected


def test_other_learning_rate_is_the_cause_of_the_updates_that_dumps_show(
    bare_pair: Callable[..., tuple[TrainingRecord, TrainingRecord]],
) -> None:
    one, other = bare_pair(rate=lambda step: 1e-3 if step < 2 else 2e-3)
    found, said = _told(one, other)
    assert found.divergence is not None and found.divergence.code == "update"
    assert "learning rate of step 2: 0.001 and 0.002" in said


def test_rows_of_other_ranks_are_told_apart_by_their_hashes(
    bare_pair: Callable[..., tuple[TrainingRecord, TrainingRecord]],
) -> None:
    one, other = bare_pair(ranks=2, rows=lambda step: rows_of(step if step < 3 else 1))
    found, said = _told(one, other)
    assert (found.divergence and found.divergence.code, found.step) == ("data", 3)
    assert said == "gpu and npu diverge at step 3, token ids: 0 of 8 rows of the batch are in both"


def test_same_rows_on_other_ranks_are_not_blamed_for_gradients(
    bare_pair: Callable[..., tuple[TrainingRecord, TrainingRecord]],
) -> None:
    found, _ = _told(*bare_pair(ranks=2, divisor=lambda step, of_rank: 2 * of_rank))
    assert found.divergence is not None and found.divergence.code == "backward"
    remedy = str(found.divergence.remedy)
    assert "how gradients are added up over ranks" in remedy and "as many ranks" in remedy


@pytest.mark.parametrize(("lost", "dumped"), [(4, (1, 2, 3, 4)), (4, (3, 4)), (4, (4,)), (3, (1, 2, 3, 4))])
def test_update_after_a_lost_state_is_named(tmp_path: Path, lost: int, dumped: tuple[int, ...]) -> None:
    def forgetting(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        step = optimizer.step
        made = []

        def of_step() -> None:
            made.append(1)
            if len(made) == lost:
                optimizer.state.clear()
            step()

        optimizer.step = of_step  # type: ignore[method-assign, assignment]
        return optimizer

    def adamw(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3)

    sides = []
    for name, optimizer in (("gpu", adamw), ("npu", forgetting), ("same", adamw)):
        # The side that forgets is in bf16, which hides other gradients.
        cast = None if name == "gpu" else torch.bfloat16
        path = Bare(steps=4, optimizer=optimizer, autocast=cast).run(tmp_path / name)
        settings = {"optimizer_groups": [{"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}]}
        facts = json.loads((path / "recorded.json").read_text())
        (path / "recorded.json").write_text(json.dumps({**facts, **settings}))
        for step in {1, 2, 3, 4}.difference(dumped):
            shutil.rmtree(path / "dump" / f"step-{step:07d}")
        sides.append(read_training_record(path))
    found, said = _told(*sides[:2])
    assert (found.divergence and found.divergence.code, found.step) == ("update", lost)
    assert said.endswith(f"step {lost}: the candidate's update is that of a first step, the reference's is not: the "
                         "optimizer's state was lost")  # fmt: skip
    assert _told(sides[0], sides[2])[0].divergence is None
    assert _told(sides[1], sides[2])[0].divergence is None


def test_moved_batches_part_although_rounding_hides_their_effect() -> None:
    one = side("gpu", range(1, 9), losses=[2.0] * 8)
    found, said = _told(one, side("npu", [1, 2, 3, 4, 6, 7, 8, 9]))
    assert (found.divergence and found.divergence.code, found.step) == ("data", 5)
    assert "from step 5 on npu has the batches of gpu from step 6 on" in said
    # In another order they may be the same rows.
    assert _told(one, side("npu", [1, 2, 3, 4, 15, 16, 17, 18]))[0].divergence is None


def test_stages_after_the_cause_refer_to_it() -> None:
    batches, losses = [1, 2, 3, 4, 6, 7, 8, 9], [2.0] * 4 + [2.5] * 4
    found, _ = _told(side("gpu", range(1, 9)), side("npu", batches, losses=losses))
    remedies = {each.code: each.remedy for each in found.findings if each.status == "failure"}
    assert list(remedies) == ["data", "later"]
    assert remedies["later"] == "mend data first: this may follow from it"
    # Another learning rate is a cause of its own.
    rates = [1e-3] * 4 + [2e-3] * 4
    found, _ = _told(side("gpu", range(1, 9)), side("npu", batches, rates=rates))
    remedies = {each.code: each.remedy for each in found.findings if each.status == "failure"}
    assert "scheduler" in str(remedies["update"])
