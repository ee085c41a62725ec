from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.core.rundir import RunDir
from ascendtune.train.changes import require_same_recipe
from ascendtune.train.recipe import Recipe


def _recipe(train: object, **others: object) -> Recipe:
    return Recipe.check({"model": {"path": "m"}, "data": {"train": train}, **others})


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("b.jsonl", "data.train[0].path: a.jsonl -> b.jsonl"),
        ([{"path": "a.jsonl", "weight": 2}], "data.train[0].weight: 1.0 -> 2.0"),
        (["a.jsonl", "b.jsonl"], 'data.train: ["a.jsonl"] -> ["a.jsonl", "b.jsonl"]'),
    ],
)
def test_what_changed_in_the_data_is_said_in_few_words(tmp_path: Path, train: object, said: str) -> None:
    run = RunDir(tmp_path)
    run.create(_recipe("a.jsonl").to_yaml(), {}, {})
    with pytest.raises(RecipeError) as raised:
        require_same_recipe(run, _recipe(train, deterministic=True), [])
    assert raised.value.what == f"this run was trained with another recipe: {said}; deterministic: false -> true"
    assert "--allow-change data.train --allow-change deterministic" in raised.value.remedy
