from __future__ import annotations

from typing import Any

import pytest

from ascendtune.data.conversation import BadRow, PreferencePair
from ascendtune.data.format import scored
from ascendtune.data.format.choose import returning_bad_rows
from ascendtune.data.format.scored import is_scored, matches

convert = returning_bad_rows(scored.convert)

USER = {"role": "user", "content": "q"}


def made_of(*completions: Any, **row: Any) -> PreferencePair | BadRow:
    return convert({"instruction": "q", **row, "completions": list(completions)})


def answers(made: PreferencePair | BadRow) -> tuple[str, str]:
    assert isinstance(made, PreferencePair), made
    assert made.chosen.messages[:-1] == made.rejected.messages[:-1] == [USER]
    return made.chosen.messages[-1]["content"], made.rejected.messages[-1]["content"]


def test_the_highest_score_is_chosen_and_the_lowest_rejected() -> None:
    rows = [
        {"response": "fair", "overall_score": 8.0, "fine-grained_score": 3.0},
        {"response": "worst", "overall_score": 10.0, "fine-grained_score": 1.25},
        {"response": "best", "overall_score": 7.5, "fine-grained_score": 4.75},
        {"response": "second best", "overall_score": 7.5, "fine-grained_score": 4.75},
    ]
    assert answers(made_of(*rows, source="evol_instruct", models=["a", "b", "c", "d"])) == ("best", "worst")
    assert matches(["source", "instruction", "models", "completions"]) and is_scored(rows)


@pytest.mark.parametrize(
    "completions",
    [
        [{"response": "good", "overall_score": "7.5"}, {"response": "poor", "overall_score": "1"}],
        [{"text": "good", "score": 2}, {"text": "poor", "score": -1}, {"text": "none", "score": None}],
        [{"answer": "poor", "rank": 7.0, "model": "x"}, {"answer": "good", "rank": 1.0, "model": "y"}],
        [
            {"response": "good", "fine-grained_score": float("nan"), "overall_score": 9},
            {"response": "poor", "fine-grained_score": 2.0, "overall_score": 5},
        ],
    ],
)
def test_scores_are_found_by_other_names_too(completions: list[dict[str, Any]]) -> None:
    assert answers(made_of(*completions)) == ("good", "poor")


@pytest.mark.parametrize(
    ("completions", "reason"),
    [
        ([{"response": "a", "score": 4}, {"response": "b", "score": 4}], "equal scores"),
        ([{"response": "a", "score": 4}, {"response": "b", "score": "N/A"}], "fewer than two scores"),
        ([{"response": "a", "score": True}, {"response": "b", "score": False}], "fewer than two scores"),
        (["a", "b"], "fewer than two scores"),
        ([{"response": "a", "score": 4}, {"response": "a", "score": 2}], "chosen and rejected are the same"),
    ],
)
def test_rows_without_a_better_answer_are_bad(completions: list[Any], reason: str) -> None:
    made = made_of(*completions)
    assert isinstance(made, BadRow) and made.reason == reason


def test_completions_that_are_not_lists_are_a_bad_row() -> None:
    made = convert({"prompt": "q", "completions": "a"})
    assert isinstance(made, BadRow) and made.reason == "no list of answers"
