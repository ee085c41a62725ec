import math
from typing import Any

import pytest

from ascendtune.core.foreign_json import is_number, value_at


@pytest.mark.parametrize("value", [math.nan, math.inf, True, "1", None, 10**400])
def test_values_that_no_finite_float_represents_are_not_numbers(value: Any) -> None:
    assert not is_number(value)


def test_a_value_below_what_is_not_an_object_is_absent() -> None:
    assert value_at({"a": {"b": 1}}, "a", "b") == 1
    assert [value_at(each, "a", "b") for each in ({}, {"a": None}, {"a": [1]}, [], None)] == [None] * 5
