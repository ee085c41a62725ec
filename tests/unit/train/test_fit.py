"""Rows that `fit` is given: each is a dict that JSON can hold, and an error names the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascendtune.core.errors import DataError
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.fit import fit

GOOD = {"prompt": "a", "completion": "b"}


def nested(depth: int) -> Any:
    value: Any = "a"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (("prompt", "completion"), "row-not-an-object"),
        (None, "row-not-an-object"),
        ("text", "row-not-an-object"),
        ({"prompt": np.int64(3)}, "row-not-json"),
        ({"prompt": {1, 2}}, "row-not-json"),
        ({"prompt": b"a"}, "row-not-json"),
        ({"prompt": "\ud800"}, "row-not-json"),
        ({("prompt",): "a"}, "row-not-json"),
        ({"prompt": 10**5000}, "row-not-json"),
        ({"prompt": nested(100_000)}, "row-not-json"),
    ],
    ids=["tuple", "None", "text", "numpy", "set", "bytes", "surrogate", "key", "long number", "deep"],
)
def test_row_that_json_cannot_hold_is_refused_with_its_number(tmp_path: Path, row: Any, code: str) -> None:
    recipe = Recipe.check({"model": {"path": "none"}, "data": {"train": "none"}, "run_dir": str(tmp_path / "{name}")})
    with pytest.raises(DataError) as caught:
        fit(recipe, rows=[GOOD, row])
    assert caught.value.code == code and caught.value.what.startswith("row 2 of rows ")
    assert not list(tmp_path.iterdir())
