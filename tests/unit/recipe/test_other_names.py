from __future__ import annotations

import pytest

from ascendtune.core.config import keys_of
from ascendtune.core.errors import RecipeError
from ascendtune.recipe.other_names import REMEDIES, native_key
from ascendtune.recipe.recipe import Recipe


@pytest.mark.parametrize("name", REMEDIES)
def test_every_name_stands_for_a_key_that_exists(name: str) -> None:
    for key in (native_key(name) or "").split(", "):
        *parents, last = key.partition(":")[0].split(".")
        path = tuple(int(part) if part.isdecimal() else part for part in parents)
        assert last in keys_of(Recipe, path), key


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"optim": {"lr": 1e-4}}, "did you mean 'optim.learning_rate'?"),
        ({"optim.lr": 1e-4}, "nest keys in a file, 'a: {b: …}' for a.b; did you mean 'optim.learning_rate'?"),
        ({"optim.learning_rat": 1}, "nest keys in a file, 'a: {b: …}' for a.b; did you mean 'optim.learning_rate'?"),
        ({"optim.learning_rate": 1e-4}, "nest the keys: 'optim: {learning_rate: …}'"),
        ({"method": {"lora.rank": 8}}, "nest the keys: 'method: {lora: {rank: …}}'"),
        ({"method.lora.rank": 8}, "nest the keys: 'method: {lora: {rank: …}}'"),
        ({"model_name_or_path": "x"}, "did you mean 'model.path'?"),
        ({"lora_r": 8}, "did you mean 'method.lora.rank'?"),
        (
            {"max_prompt_length": 8},
            "questions alone are not cut; data.max_length is for question and answer together",
        ),
    ],
)
def test_a_name_of_another_tool_is_answered_with_the_key(values: dict[str, object], remedy: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.check({"model": {"path": "m"}, "data": {"train": "rows.jsonl"}, **values})
    assert caught.value.code == "unknown-recipe-key" and caught.value.remedy == remedy
