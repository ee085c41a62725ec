"""Causes that hold for some types are shown where the message names one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation
from ascendtune.core import language

Explained = Callable[..., Explanation]


def _causes(explanation: Explanation) -> str:
    assert explanation.verdict.first is not None
    return " ".join(explanation.verdict.first.causes)


@pytest.mark.parametrize(
    ("error", "told", "untold"),
    [
        ("RuntimeError: Could not infer dtype of NoneType", "a field of a sample is missing", "collator"),
        ("RuntimeError: Could not infer dtype of dict", "collator", "a field of a sample is missing"),
        (
            "TypeError: tide(): argument 'input' (position 1) must be Tensor, not MoonOutput",
            "the whole output of a model",
            "the keys of its dictionary",
        ),
        (
            "TypeError: tide() received an invalid combination of arguments - got (int, NoneType)",
            "that is not set",
            "divided with /",
        ),
    ],
)
def test_causes_for_other_types_are_not_shown(explained: Explained, error: str, told: str, untold: str) -> None:
    causes = _causes(explained(f"{error}\n"))

    assert told in causes
    assert untold not in causes


def test_causes_for_other_types_are_not_shown_in_chinese(explained: Explained) -> None:
    with language.using("zh"):
        causes = _causes(explained("RuntimeError: Could not infer dtype of NoneType\n"))

        assert "缺少字段" in causes
        assert "collator" not in causes


def test_a_caller_that_the_traceback_does_not_name_is_left_out_of_commands(explained: Explained) -> None:
    remedies = explained("ModuleNotFoundError: No module named 'triton.knobs'\n").remedies()

    assert not any("PACKAGE" in remedy for remedy in remedies)
    assert remedies[0].startswith("`pip show triton`")
