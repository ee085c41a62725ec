"""The requirements of a stage on its data."""

from __future__ import annotations

from typing import Any

import pytest

from ascendtune.data.spec import Task
from ascendtune.recipe.method import MethodSection


@pytest.mark.parametrize(
    ("method", "task"),
    [
        ({}, "conversations"),
        ({"stage": "pretrain"}, "text"),
        ({"stage": "reward"}, "pairs"),
        ({"stage": "preference"}, "pairs"),
        ({"stage": "preference", "preference": {"loss": "orpo"}}, "pairs"),
        ({"stage": "preference", "preference": {"loss": "kto"}}, "singles"),
        # A loss of another stage says nothing.
        ({"stage": "reward", "preference": {"loss": "kto"}}, "pairs"),
    ],
)
def test_each_stage_has_its_kind_of_rows(method: dict[str, Any], task: Task) -> None:
    assert MethodSection.model_validate(method).task == task
