"""Micro-batches: every row of a step on exactly one rank, as many micro-batches on every rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.train.table_model import LENGTHS, plan_of, write_dataset

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.batch import Batches, DeviceBatch
from ascendtune.train.strategy.base import Strategy


def batches_of(directory: Path, rank: int, ranks: int, per_device: int, *, padding_free: bool = False) -> Batches:
    strategy = Strategy(find_device())
    strategy.rank, strategy.world_size = rank, ranks
    dataset = write_dataset(directory / f"tokens_{rank}_{per_device}_{padding_free}")
    return Batches(dataset, plan_of(dataset, 5, seed=1), strategy, per_device, padding_free=padding_free, pad_id=0)


def of_step(batches: Batches, step: int) -> list[DeviceBatch]:
    return list(batches.micro_batches(batches.plan.batch(step)))


@pytest.mark.parametrize(("ranks", "per_device"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
def test_ranks_share_the_labels_of_a_step_in_equally_many_micro_batches(
    tmp_path: Path, ranks: int, per_device: int
) -> None:
    for step in (0, 1):
        of_ranks = [of_step(batches_of(tmp_path / str(step), rank, ranks, per_device), step) for rank in range(ranks)]
        assert len({len(each) for each in of_ranks}) == 1
        plan = batches_of(tmp_path / f"{step}_again", 0, ranks, per_device).plan
        labelled = sum(len(batch.targets) for batches in of_ranks for batch in batches)
        assert labelled == plan.labelled_tokens(plan.batch(step))


def test_only_the_last_micro_batch_of_a_step_is_marked_as_last(tmp_path: Path) -> None:
    found = of_step(batches_of(tmp_path, 0, 1, 2), 0)
    assert [each.is_last for each in found] == [False, False, True]


def test_a_rank_without_work_gets_a_batch_that_teaches_nothing(tmp_path: Path) -> None:
    # The second step has two rows for three ranks.
    (batch,) = of_step(batches_of(tmp_path, 2, 3, 1), 1)
    assert batch.weight == 0 and len(batch.targets) == len(batch.target_index) == 0 and batch.is_last
    assert batch.input_ids.numel() > 0, "it takes part in the collectives"


def test_targets_are_the_tokens_after_their_positions(tmp_path: Path) -> None:
    batches = batches_of(tmp_path, 0, 1, 3)
    batch = batches.make([(0,), (4,)])
    assert batch.input_ids.shape == (2, max(LENGTHS[0], LENGTHS[4]))
    inputs = batch.input_ids.flatten()
    assert batch.targets.tolist() == inputs[batch.target_index + 1].tolist()
    assert len(batch.targets) == LENGTHS[0] - 1 + LENGTHS[4] - 1


@pytest.mark.parametrize("masked", [True, False])
def test_a_model_with_masks_of_its_own_gets_a_mask_of_the_padding(tmp_path: Path, masked: bool) -> None:
    batches = replace(batches_of(tmp_path, 0, 1, 3), masked=masked)
    mask = batches.make([(0,), (4,)]).model_inputs().get("attention_mask")
    longest = max(LENGTHS[0], LENGTHS[4])
    rows = [[1] * LENGTHS[row] + [0] * (longest - LENGTHS[row]) for row in (0, 4)]
    assert (mask is None) is not masked
    assert mask is None or (LENGTHS[0] != LENGTHS[4] and mask.tolist() == rows)


def test_packed_documents_have_positions_and_borders_of_their_own(tmp_path: Path) -> None:
    batch = batches_of(tmp_path, 0, 1, 3, padding_free=True).make([(0, 2), (4,)])
    borders = (0, LENGTHS[0], LENGTHS[0] + LENGTHS[2], LENGTHS[0] + LENGTHS[2] + LENGTHS[4])
    assert batch.input_ids.shape == (1, borders[-1]) and batch.cu_seqlens == borders
    assert batch.position_ids is not None
    assert [int(batch.position_ids[0, at]) for at in borders[:-1]] == [0, 0, 0]


def test_batches_without_mismatched_answers_have_none(tmp_path: Path) -> None:
    batches = batches_of(tmp_path, 0, 1, 1)
    assert not list(batches.micro_batches(batches.plan.batch(0), mismatched=True))
    assert len(list(replace(batches, per_device=5).micro_batches(batches.plan.batch(0)))) == 1
