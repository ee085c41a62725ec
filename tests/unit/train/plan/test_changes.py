"""Changes that take less memory."""

from __future__ import annotations

from typing import Any

import pytest

from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.changes import changed, changes


def _recipe(**keys: Any) -> Recipe:
    return Recipe.check({"model": {"path": "m"}, "data": {"train": [{"path": "x.jsonl"}]}, **keys})


def test_changes_come_by_cost_and_each_once() -> None:
    found = list(changes(_recipe(batch={"per_device": 4}), ranks=8, on_host=False))
    assert [each.cost for each in found] == sorted(each.cost for each in found)
    assert len({repr(sorted(each.keys.items())) for each in found}) == len(found)
    assert found[0].keys == {"batch.per_device": 1, "batch.accumulate": 4}


def test_a_smaller_micro_batch_keeps_the_global_batch() -> None:
    recipe = _recipe(batch={"per_device": 3, "accumulate": 2})
    smaller = changed(recipe, next(changes(recipe, ranks=1, on_host=True)))
    assert smaller.batch.per_device * smaller.batch.accumulate == 6


def test_offers_nothing_that_the_recipe_has_or_that_gains_nothing() -> None:
    recipe = _recipe(
        model={"path": "m", "quantization": "nf4"}, memory={"gradient_checkpointing": True}, method={"tuner": "lora"},
        data={"train": [{"path": "x.jsonl"}], "max_length": 512},
    )  # fmt: skip
    assert list(changes(recipe, ranks=1, on_host=True)) == []


def test_every_change_is_a_valid_recipe() -> None:
    for tuner in ("full", "freeze", "lora", "oft"):
        recipe = _recipe(batch={"per_device": 2}, method={"tuner": tuner})
        for each in changes(recipe, ranks=2, on_host=False):
            assert changed(recipe, each) != recipe
        assert any("model.quantization" in each.keys for each in changes(recipe, ranks=2, on_host=False))


@pytest.mark.parametrize(
    ("section", "ranks", "on_host", "offered"),
    [
        ({"stage": 0}, 4, True, [{"stage": 2}, {"stage": 3}]),
        ({"stage": 2}, 1, True, []),
        (
            {"stage": 2}, 4, False,
            [
                {"stage": 3},
                {"stage": 2, "offload_optimizer": "cpu"},
                {"stage": 3, "offload_optimizer": "cpu"},
                {"stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
            ],
        ),
        (
            {"stage": 3, "offload_optimizer": "nvme", "nvme_path": "/disk"}, 4, False,
            [{"stage": 3, "offload_param": "cpu"}],
        ),
        ({"stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"}, 4, False, []),
    ],
)  # fmt: skip
def test_zero_is_offered_higher_stages_and_host_memory(
    section: dict[str, Any], ranks: int, on_host: bool, offered: list[dict[str, Any]]
) -> None:
    recipe = _recipe(precision="fp32", parallel={"strategy": "deepspeed", "deepspeed": section})
    found = [
        {key.rpartition(".")[2]: value for key, value in each.keys.items()}
        for each in changes(recipe, ranks=ranks, on_host=on_host)
        if all(key.startswith("parallel.deepspeed.") for key in each.keys)
    ]
    assert found == offered
    for each in changes(recipe, ranks=ranks, on_host=on_host):
        assert changed(recipe, each) != recipe
