"""The largest micro-batch of an epoch, held against a walk through all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ascendtune.data.plan import BatchPlan, micro_batches_of_rank
from ascendtune.data.store import TokenDataset
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.rows import full_rows, largest_micro_batch, steps_of_data, steps_of_full_rows


def _recipe(stage: dict[str, Any], packing: Any, **changes: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "x",
            "model": {"path": "m"},
            "data": {"train": "d.jsonl", "max_length": 40, "packing": packing},
            "method": stage,
            "batch": {"per_device": 3, "accumulate": 2},
            **changes,
        }
    )


@pytest.mark.parametrize("global_batch", [12, 10], ids=["whole", "of a run with other devices"])
@pytest.mark.parametrize("max_steps", [None, 2])
@pytest.mark.parametrize(
    ("packing", "padding_free"), [("auto", True), ("auto", False), (False, True)], ids=["packed", "padded", "flat"]
)
@pytest.mark.parametrize(
    ("stage", "size", "members"),
    [
        ({"stage": "sft"}, 1, 1),
        ({"stage": "preference"}, 2, 2),
        ({"stage": "preference", "preference": {"loss": "kto"}}, 2, 1),
    ],
    ids=["sft", "pairs", "kto"],
)
def test_no_micro_batch_has_more_positions_or_as_many_and_more_labels(
    stage: dict[str, Any], size: int, members: int, packing: Any, padding_free: bool, max_steps: int | None,
    global_batch: int,
) -> None:  # fmt: skip
    drawn = np.random.default_rng(1)
    lengths = drawn.integers(2, 41, 101 * size).astype(np.int32)
    labels = drawn.integers(1, lengths).astype(np.int32)
    dataset = cast(TokenDataset, SimpleNamespace(lengths=lengths, label_counts=labels, group_size=size))
    recipe = _recipe(stage, packing, optim={"max_steps": max_steps} if max_steps else {"epochs": 1})
    capacity = 40 if padding_free and packing else None
    plan = BatchPlan(lengths, labels, capacity=capacity, global_batch=global_batch, seed=recipe.seed, group_size=size)

    def measured(rows: list[int]) -> tuple[int, int]:
        positions = sum(lengths[rows]) if padding_free else len(rows) * max(lengths[rows])
        return int(positions), int(sum(labels[rows]))

    expected = max(
        measured([group * size + each for sequence in share for group in sequence for each in range(members)])
        for step in range(max_steps or plan.steps_per_epoch)
        for rank in range(2)
        for share in micro_batches_of_rank(plan.batch(step), rank=rank, world_size=2, per_device=3)
        if share
    )
    found = largest_micro_batch(
        dataset, recipe, padding_free=padding_free, ranks=2, global_batch=None if global_batch == 12 else global_batch
    )
    tokens = [each.tokens for each in found]
    assert (sum(tokens) if padding_free else len(tokens) * max(tokens), sum(each.labels for each in found)) == expected


def test_a_resumed_run_has_the_steps_of_its_own_global_batch() -> None:
    lengths = np.full(50, 9, np.int32)
    dataset = cast(
        TokenDataset,
        SimpleNamespace(lengths=lengths, label_counts=lengths - 1, group_size=1, rows_by_length=lambda: {9: 50}),
    )
    recipe = _recipe({"stage": "sft"}, packing=False, optim={"epochs": 2})
    # Six sequences on this device; the run began on three with eight each.
    assert steps_of_data(dataset, recipe, padding_free=True, ranks=1).steps == 2 * 9
    found = steps_of_data(dataset, recipe, padding_free=True, ranks=1, global_batch=24)
    assert (found.steps, found.per_epoch, found.tokens) == (2 * 3, 3, 450 / 3)


def test_steps_of_kto_hold_a_mismatched_answer_for_each_row_whether_the_data_are_known_or_not() -> None:
    """A micro-batch has the answers alone; with data, tokens of a step are those of all rows of the data set."""
    kto, sft = (
        _recipe(stage, False, optim={"max_steps": 2})
        for stage in ({"stage": "preference", "preference": {"loss": "kto"}}, {"stage": "sft"})
    )
    of_kto, of_sft = (steps_of_full_rows(each, full_rows(each), 2) for each in (kto, sft))
    assert (of_sft.tokens, of_sft.labels) == (12 * 40, 12 * 39)
    assert (of_kto.tokens, of_kto.labels) == (2 * of_sft.tokens, 2 * of_sft.labels)
